"""Transformers with unbounded context in bounded memory: the run half, without torch.

>>> import tensorcache as tc
>>> model = tc.Model.random({"num_hidden_layers": 1}, tokenizer="bytes")   # or tc.Model("checkpoint folder")
>>> session = model.session()
>>> for piece in session.generate("Once upon a time", max_tokens=8, temperature=0.8, seed=1):
...     text = piece                                                        # print(piece, end="")
"""

from ._core import (
    Model,
    Sampler,
    Session,
    StateBytes,
    StreamDecoder,
    TextStream,
    Tokenizer,
    TokenStream,
    batch_logits,
    decode_batch,
    evaluate,
    export_model,
    import_model,
    info,
)
from ._core import version as __version__
from .errors import (
    CorruptError,
    DivergedError,
    Error,
    InvalidArgumentError,
    IoError,
    NotFoundError,
    UnsupportedError,
)

__all__ = [
    "CorruptError",
    "DivergedError",
    "Error",
    "InvalidArgumentError",
    "IoError",
    "Model",
    "NotFoundError",
    "Sampler",
    "Session",
    "StateBytes",
    "StreamDecoder",
    "TextStream",
    "TokenStream",
    "Tokenizer",
    "UnsupportedError",
    "__version__",
    "batch_logits",
    "decode_batch",
    "evaluate",
    "export_model",
    "import_model",
    "info",
]
