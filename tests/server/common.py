"""What the server's tests share: a small random model, a server of it, and clients."""

import array
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import openai

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 256 + len(SPECIAL)


def byte_names():
    """GPT-2's names of the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in shown}
    hidden = (byte for byte in range(256) if byte not in names)
    return names | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


def tokenizer_json():
    """A token a byte, token number = byte, and the special ones."""
    added = [
        dict(id=256 + i, content=text, special=True, single_word=False, lstrip=False, rstrip=False, normalized=False)
        for i, text in enumerate(SPECIAL)
    ]
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    vocab = {name: byte for byte, name in byte_names().items()}
    return dict(
        version="1.0", truncation=None, padding=None, normalizer=None, post_processor=None, added_tokens=added,
        pre_tokenizer=level, decoder=level, model=dict(type="BPE", vocab=vocab, merges=[], dropout=None, unk_token=None),
    )


def write_model(folder, width=16, layers=2, window=32, seed=1):
    """A random model that writes bytes."""
    inner = 24
    shapes = {"model.embed_tokens.weight": [VOCABULARY, width], "model.norm.weight": [width], "lm_head.weight": [VOCABULARY, width]}
    for i in range(layers):
        at = f"model.layers.{i}."
        shapes |= {at + f"self_attn.{name}_proj.weight": [width, width] for name in "qkvo"}
        shapes |= {at + f"mlp.{name}_proj.weight": [inner, width] for name in ("gate", "up")}
        shapes |= {at + "mlp.down_proj.weight": [width, inner]}
        shapes |= {at + f"{name}_layernorm.weight": [width] for name in ("input", "post_attention")}
    numbers = random.Random(seed)
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = array.array("f", [1.0] * count if len(shape) == 1 else [numbers.gauss(0, 0.4) for _ in range(count)])
        header[name] = dict(dtype="F32", shape=shape, data_offsets=[len(data), len(data) + 4 * count])
        data += values.tobytes()
    text = json.dumps(header).encode()
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = dict(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
        norm="rms_norm", gated_mlp=True, hidden_act="silu", attention_bias=False, cache=dict(method="window", window=window),
    )
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(dict(tokenizer_class="GPT2Tokenizer", eos_token="<|endoftext|>", bos_token="<|endoftext|>"))
    )
    return folder


class Server:
    """`tensorcache serve` on a free port; ended with the test."""

    def __init__(self, model, *arguments):
        command = [os.environ["SERVER_PROGRAM"], "serve", "--model", str(model), "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if " on http://" not in line:
            raise RuntimeError(f"{command}: {line}{self.process.stderr.read()}")
        self.url = line.split(" on ")[1].strip()

    def stop(self):
        """Ends it as a service manager does; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self):
        status = self.process.wait(timeout=60)
        self.process.stdout.close()
        self.process.stderr.close()
        return status

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.wait()


class ServerTest(unittest.TestCase):
    """One server for the tests of a class, which may change its `arguments` and `prepare` the model's folder."""

    arguments = ()
    maxDiff = 4000

    @classmethod
    def prepare(cls, model):
        pass

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="tensorcache_server.")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.model = write_model(cls.folder / "small")
        cls.prepare(cls.model)
        cls.server = Server(cls.model, *cls.arguments)
        cls.addClassCleanup(cls.server.kill)
        cls.client = cls.client_of(cls.server)

    @staticmethod
    def client_of(server, key="no-key", kind=openai.OpenAI):
        return kind(base_url=server.url, api_key=key, max_retries=0, timeout=60)

    def refusal(self, call, *arguments, **named):
        """The error that a call ends with."""
        with self.assertRaises(openai.APIStatusError) as raised:
            call(*arguments, **named)
        return raised.exception


def wait_until(happened):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if happened():
            return True
        time.sleep(0.01)
    return False
