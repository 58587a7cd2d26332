"""Attention over the window in tensor operations: blocks of queries, each with the keys that one of them sees."""

from typing import Optional

import torch
from torch import Tensor


def _grouped(x: Tensor, G: int) -> Tensor:
    """(B, T, H, D) -> (B, G, R, T, D): the R = H / G query heads of each key/value head."""
    return x.unflatten(2, (G, x.shape[2] // G)).permute(0, 2, 3, 1, 4)


def _with_past(past: Optional[Tensor], block: Tensor) -> Tensor:
    """(B, heads, keys, D): the past, then the block (B, T, heads, D)."""
    rows = block.transpose(1, 2)
    return rows if past is None else torch.cat((past, rows), 2)


def _logits(q: Tensor, k: Tensor, scale: float, hidden: Tensor) -> Tensor:
    """q (B, G, R, n, D) . k (B, G, m, D) -> (B, G, R, n, m), with -inf where `hidden` (n, m)."""
    logits = (q.flatten(2, 3) * scale) @ k.transpose(2, 3)
    return logits.unflatten(2, q.shape[2:4]).masked_fill(hidden, -torch.inf)


def _weigh(weights: Tensor, v: Tensor) -> Tensor:
    """weights (B, G, R, n, m) times v (B, G, m, Dv) -> (B, n, H, Dv)."""
    sums = weights.flatten(2, 3) @ v
    return sums.unflatten(2, weights.shape[2:4]).permute(0, 3, 1, 2, 4).flatten(2, 3)


def window_attention_composite(
    q: Tensor, k: Tensor, v: Tensor, past_k: Optional[Tensor], past_v: Optional[Tensor], sink_k: Optional[Tensor],
    sink_v: Optional[Tensor], q_sink: Optional[Tensor], window: int, position: int, scale: Optional[float],
) -> Tensor:  # fmt: skip
    """`window_attention` for any device and dtype, with any number of derivatives. Matrix products in the inputs' dtype, softmax in
    float32 at least; memory is O(T (window + block)) for blocks of 64 to 512 queries. Checks nothing."""
    B, T, H, D = q.shape
    G = k.shape[2]
    P = 0 if past_k is None else past_k.shape[2]
    W = P + T if window == 0 else window
    scale = D**-0.5 if scale is None else scale
    queries = _grouped(q, G)
    sink_queries = queries if q_sink is None else _grouped(q_sink, G)
    keys, values = _with_past(past_k, k), _with_past(past_v, v)
    # Sinks that the last query does not see are not looked at: they need not be there yet.
    sinks = 0
    if sink_k is not None and window > 0:
        sinks = max(0, min(position + T - window, sink_k.shape[2]))
    size = max(64, min(W, 512))
    outputs = []
    for begin in range(0, T, size):
        end = min(begin + size, T)
        first = max(P + begin - W + 1, 0)
        last = P + end
        query = torch.arange(P + begin, last, device=q.device).unsqueeze(1)
        key = torch.arange(first, last, device=q.device)
        hidden = (key > query) | (key <= query - W)
        logits = _logits(queries[:, :, :, begin:end], keys[:, :, first:last], scale, hidden)
        if sink_k is not None and sinks > 0:
            at = torch.arange(position + begin, position + end, device=q.device).unsqueeze(1)
            hidden = torch.arange(sinks, device=q.device) > at - window
            logits = torch.cat((logits, _logits(sink_queries[:, :, :, begin:end], sink_k[:, :, :sinks], scale, hidden)), 4)
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        weights = logits.softmax(4, dtype=dtype).to(v.dtype)
        out = _weigh(weights[..., : last - first], values[:, :, first:last])
        if sink_v is not None and sinks > 0:
            out = out + _weigh(weights[..., last - first :], sink_v[:, :, :sinks])
        outputs.append(out)
    if not outputs:
        return q.new_empty((B, 0, H, v.shape[3]))
    return torch.cat(outputs, 1).contiguous()
