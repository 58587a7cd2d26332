"""A layer's attention: the window, the memory of what left it, and what joins the two."""

import math
from collections.abc import Mapping
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import _core, errors
from ._memory_scan import memory_scan
from ._window_attention import window_attention

Config = dict[str, Any]

# Of matrices at the start; divided by sqrt(2 layers) for those that add to the residual stream.
DEVIATION = 0.02


def check_supported(config: Config) -> None:
    """Refuses what only the library trains."""
    method = config["cache"]["method"]
    if method not in ("full", "window", "tensor_cache"):
        raise errors.UnsupportedError(f"tensorcache.torch has the methods full, window and tensor_cache, not {method}; `tensorcache train` has it")
    if config["cache"]["tensor_cache"]["router"]["slots"] > 1:
        raise errors.UnsupportedError("tensorcache.torch has one slot a head (cache.tensor_cache.router.slots); `tensorcache train` has more")


def put(root: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Registers it under a name with dots."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    root.register_parameter(last, parameter)


def residual_deviation(config: Config) -> float:
    """Of matrices that add to the residual stream."""
    return DEVIATION / math.sqrt(2 * config["num_hidden_layers"])


def rotate(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """Rotary embedding of (B, T, heads, D) by tables (T, D / 2)."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if pairing == "interleaved":
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def unit_length(x: Tensor) -> Tensor:
    """Rows of length 1."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-12).rsqrt()


def later(x: Tensor, tokens: int) -> Tensor:
    """Rows of (B, T, heads, D), so many tokens later; zeros first."""
    return F.pad(x, (0, 0, 0, 0, tokens, 0))[:, : x.shape[1]]


class TensorCacheAttention(nn.Module):
    """Attention over the window, and a memory of what left it: W_o local + gate W_tc reads.

    `config` has the keys of a checkpoint's config.json (docs/training.md); what is missing has its default. `layer` says which
    layer of the model it is. The methods "full", "window" and "tensor_cache" are there, the last with every option but slots.

    >>> import torch
    >>> from tensorcache.torch import TensorCacheAttention
    >>> config = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "cache": {"window": 8}}
    >>> attention = TensorCacheAttention(config)
    >>> attention(torch.randn(2, 50, 32)).shape
    torch.Size([2, 50, 32])
    """

    rope_cos: Tensor
    rope_sin: Tensor

    def __init__(self, config: Mapping[str, Any], layer: int = 0) -> None:
        super().__init__()
        self.config: Config = _core.complete_config(dict(config))
        check_supported(self.config)
        if not 0 <= layer < self.config["num_hidden_layers"]:
            raise errors.InvalidArgumentError(f"layer is {layer}, of {self.config['num_hidden_layers']}")
        E, H, G = (self.config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
        self.head_dim = self.config["head_dim"] or E // H
        for name, heads in (("q_proj", H), ("k_proj", G), ("v_proj", G)):
            self.add_module(name, nn.Linear(E, heads * self.head_dim, bias=self.config["attention_bias"]))
        self.o_proj = nn.Linear(H * self.head_dim, E, bias=self.config["output_bias"])
        prefix = f"model.layers.{layer}.self_attn."
        for name, shape, values, residual, scale, learned in _core.learned_tensors(self.config):
            if name.startswith(prefix):
                # Without values it is random: reset_parameters fills it.
                numbers = torch.tensor(values or [0.0]).repeat(math.prod(shape) // max(len(values), 1)).view(shape)
                put(self, name.removeprefix(prefix), nn.Parameter(numbers, requires_grad=learned))
                if residual:
                    self._output_scale = scale
        self.reset_parameters()
        cos, sin = self.rope_tables(self.config["max_position_embeddings"])
        self.register_buffer("rope_cos", cos, persistent=False)
        self.register_buffer("rope_sin", sin, persistent=False)

    @property
    def has_memory(self) -> bool:
        """Whether this layer has one."""
        return hasattr(self, "tensor_cache")

    def reset_parameters(self) -> None:
        """Matrices get random numbers; what the memory learns about itself starts as the config says."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.o_proj):
            deviation = residual_deviation(self.config) if projection is self.o_proj else DEVIATION
            nn.init.normal_(projection.weight, std=deviation)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
        if self.has_memory:
            nn.init.normal_(self.tensor_cache.o_proj.weight, std=residual_deviation(self.config) * self._output_scale)

    def rope_tables(self, tokens: int) -> tuple[Tensor, Tensor]:
        """cos and sin, (tokens, D / 2), of the model's frequencies."""
        cos, sin = _core.rope_tables(self.config, tokens)
        return torch.from_numpy(cos), torch.from_numpy(sin)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, E) -> (B, T, E), from the start of a text."""
        D, cache = self.head_dim, self.config["cache"]
        plain_q, plain_k, v = (p(x).unflatten(2, (-1, D)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = plain_q, plain_k
        if self.config["position_embedding"] == "rope":
            T = x.shape[1]
            if T > self.rope_cos.shape[0]:
                self.rope_cos, self.rope_sin = (table.to(x.device) for table in self.rope_tables(2 * T))
            cos, sin = self.rope_cos[:T].to(q.dtype), self.rope_sin[:T].to(q.dtype)
            q, k = (rotate(y, cos, sin, self.config["rope_pairing"]) for y in (q, k))
        local = window_attention(q, k, v, window=0 if cache["method"] == "full" else cache["window"])
        out: Tensor = self.o_proj(local.flatten(2))
        if not self.has_memory:
            return out
        by_content = cache["tensor_cache"]["address"]["by"] == "content"
        reads = self._remember(x, plain_q if by_content else q, plain_k if by_content else k, v)
        return out + self._output(x, reads.flatten(2))

    def _addressed(self, x: Tensor, conv: str, *, unit: bool, features: bool) -> Tensor:
        """Convolved over time, of unit length, mapped."""
        if hasattr(self.tensor_cache, conv):
            weight = getattr(self.tensor_cache, conv)  # (heads, taps, D)
            x = x + sum(weight[:, tap] * later(x, tap) for tap in range(weight.shape[1]))
        if unit:
            x = unit_length(x)
        return torch.cat((x.softmax(-1), (-x).softmax(-1)), -1) if features else x

    def _rates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log-decay and write strength of each memory: (M), or (B, T, M) for each token."""
        write, memory = self.config["cache"]["tensor_cache"]["write"], self.tensor_cache
        decay, strength = memory.lambda_logit, memory.eta_logit  # (G, timescales)
        if hasattr(memory, "rates_proj"):
            G, timescales = decay.shape
            gates = F.linear(x, memory.rates_proj.weight).float().unflatten(2, (G, -1))
            if write["decay"] == "per_token":
                decay = decay + gates[..., :timescales]
            if write["strength"] == "per_token":
                strength = strength + gates[..., -timescales:]
        least = math.log(2) / write["max_half_life"] if write["max_half_life"] > 0 else 0.0
        return (F.logsigmoid(decay) - least).flatten(-2), strength.sigmoid().flatten(-2)

    def _remember(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Writes and reads the memory: (B, T, H, D)."""
        cache = self.config["cache"]
        options, memory = cache["tensor_cache"], self.tensor_cache
        write, address, read = options["write"], options["address"], options["read"]
        features = address["features"] != "none"
        q = self._addressed(q, "conv_q", unit=address["normalize_queries"], features=features)
        k = later(k, 1) if address["shift"] else k
        k = self._addressed(k, "conv_k", unit=address["normalize_keys"], features=features)
        v = self._addressed(v, "conv_v", unit=False, features=False)
        if read["normalize"]:
            v = F.pad(v, (0, 1), value=1.0)
        G, timescales = memory.lambda_logit.shape
        if timescales > 1:  # a memory each: virtual heads of one scan
            k, v = (y.repeat_interleave(timescales, 2) for y in (k, v))
            q = q.unflatten(2, (G, 1, -1)).expand(-1, -1, -1, timescales, -1, -1).flatten(2, 4)
        chunked = self.training and write["when"].startswith("chunk_")
        log_decay, strength = self._rates(x)
        reads = memory_scan(
            q, k, v, log_decay, strength, rule=write["rule"],
            lag=0 if chunked or write["when"] == "insert" else cache["window"],
            mode=write["when"] if chunked else "exact", chunk=write["chunk"] if chunked else 0,
        ).reads.unflatten(2, (G, timescales, -1))  # fmt: skip
        if read["normalize"]:
            reads = reads[..., :-1] / reads[..., -1:].abs().clamp_min(read["floor"])
        if timescales > 1:
            reads = reads[:, :, :, 0] + memory.alpha.sigmoid() * reads[:, :, :, 1]
        else:
            reads = reads.squeeze(3)
        return self._normed(reads.flatten(2, 3) * write["value_scale"])

    def _normed(self, reads: Tensor) -> Tensor:
        norm = getattr(self.tensor_cache, "read_norm", None)
        if norm is None:
            return reads
        floor = norm.floor.square().unsqueeze(-1) if hasattr(norm, "floor") else 1e-6
        return norm.weight * reads * (reads.square().mean(-1, keepdim=True) + floor).rsqrt()

    def _output(self, x: Tensor, reads: Tensor) -> Tensor:
        """gate W_tc reads"""
        memory = self.tensor_cache
        projection: Optional[nn.Module] = getattr(memory, "gate_proj", None)
        if projection is None:
            return F.linear(reads, memory.gate.sigmoid() * memory.o_proj.weight)
        weight = projection.weight
        logits = F.linear(x, weight) if weight.dim() == 2 else (x @ weight).unsqueeze(-1)
        return F.linear((logits + memory.gate).sigmoid() * reads, memory.o_proj.weight)
