"""A whole model: what `tensorcache train` trains, for training in Python."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import _core
from ._attention import DEVIATION, Config, TensorCacheAttention, residual_deviation

Folder = Union[str, os.PathLike[str]]


def _norm(config: Config) -> nn.Module:
    kind = nn.LayerNorm if config["norm"] == "layer_norm" else nn.RMSNorm
    return kind(config["hidden_size"], eps=config["norm_eps"])


class _FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        E, width, bias = config["hidden_size"], config["intermediate_size"], config["mlp_bias"]
        self.activation = config["hidden_act"]
        self.gate_proj = nn.Linear(E, width, bias=bias) if config["gated_mlp"] else None
        self.up_proj = nn.Linear(E, width, bias=bias)
        self.down_proj = nn.Linear(width, E, bias=bias)
        for projection in (self.gate_proj, self.up_proj, self.down_proj):
            if projection is None:
                continue
            nn.init.normal_(projection.weight, std=residual_deviation(config) if projection is self.down_proj else DEVIATION)
            if bias:
                nn.init.zeros_(projection.bias)

    def _activate(self, x: Tensor) -> Tensor:
        if self.activation == "silu":
            return F.silu(x)
        return F.gelu(x, approximate="tanh" if self.activation == "gelu_tanh" else "none")

    def forward(self, x: Tensor) -> Tensor:
        up = self.up_proj(x)
        out: Tensor = self.down_proj(self._activate(up) if self.gate_proj is None else self._activate(self.gate_proj(x)) * up)
        return out


class _Layer(nn.Module):
    def __init__(self, config: Config, index: int) -> None:
        super().__init__()
        self.input_layernorm = _norm(config)
        self.self_attn = TensorCacheAttention(config, index)
        self.post_attention_layernorm = _norm(config)
        self.mlp = _FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _Trunk(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        E = config["hidden_size"]
        self.embed_tokens = nn.Embedding(config["vocab_size"], E)
        learned = config["position_embedding"] == "learned"
        self.embed_positions = nn.Embedding(config["max_position_embeddings"], E) if learned else None
        self.layers = nn.ModuleList(_Layer(config, index) for index in range(config["num_hidden_layers"]))
        self.norm = _norm(config)
        nn.init.normal_(self.embed_tokens.weight, std=DEVIATION)
        if self.embed_positions is not None:
            nn.init.normal_(self.embed_positions.weight, std=DEVIATION)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        if self.embed_positions is not None:
            x = x + self.embed_positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.norm(x)
        return out


class TensorCacheLM(nn.Module):
    """A language model that is trained here, and streams in the runtime: `save` writes what `tensorcache.Model` loads.

    `config` has the keys of a checkpoint's config.json (docs/training.md); what is missing has its default. The parameters have the
    names of checkpoints. Sequences start at their first token: there is no state to carry from one to the next.

    >>> import tempfile
    >>> import torch, tensorcache as tc
    >>> from tensorcache.torch import TensorCacheLM
    >>> model = TensorCacheLM({"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "cache": {"window": 8}})
    >>> logits = model(torch.arange(40).view(1, 40))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(folder)
    ...     session = tc.Model(folder).session()
    ...     streamed = torch.from_numpy(session.prefill_logits(range(40)))
    >>> bool((logits[0] - streamed).abs().max() < 1e-4)
    True
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config: Config = _core.complete_config(dict(config))
        self.model = _Trunk(self.config)
        tied = self.config["tie_word_embeddings"]
        self.lm_head = None if tied else nn.Linear(self.config["hidden_size"], self.config["vocab_size"], bias=False)
        if self.lm_head is not None:
            nn.init.normal_(self.lm_head.weight, std=DEVIATION)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> logits (B, T, vocab_size)."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return F.linear(self.model(tokens), head.weight)

    def save(self, folder: Folder, *, force: bool = False) -> None:
        """Writes the model as a checkpoint folder, in one piece; `force` replaces the one that is there."""
        tensors = {name: x.detach().to("cpu", torch.float32).contiguous() for name, x in self.state_dict().items()}
        stored = [(name, list(x.shape), x.data_ptr()) for name, x in tensors.items()]
        _core.write_checkpoint(folder, self.config, stored, force)

    @classmethod
    def from_checkpoint(cls, folder: Folder) -> "TensorCacheLM":
        """The model of a checkpoint folder: of `save`, `tensorcache train`, `adapt` or `import`."""
        model = cls(json.loads((pathlib.Path(folder) / "config.json").read_text()))
        model.load_state_dict({name: torch.from_numpy(x) for name, x in _core.read_checkpoint(folder).items()})
        return model
