"""The chunked form of the memory in tensor operations: everything inside a chunk as matrix products over all chunks at once, and a
loop over chunks only for the state. src/kernels/memory_scan/README.md derives it."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn.functional import pad

EXACT_CHUNK = 64


def _chunked(x: Tensor, C: int) -> Tensor:
    """(..., n, D) -> (..., ceil(n / C), C, D), zeros behind the last row."""
    n = x.shape[-2]
    chunks = -(-n // C)
    return pad(x, (0, 0, 0, chunks * C - n)).unflatten(-2, (chunks, C))


class _Writes(NamedTuple):
    """The writes of N chunks of C. Rows of padding are zero: no decay, nothing written."""

    k: Tensor  # (B, G, N, C, Dk)
    v: Tensor  # (B, G, N, C, Dv)
    prefix: Tensor  # (B, G, N, C, 1): P_p = g_0 + ... + g_p, of the chunk's log-decays
    before: Tensor  # the same: P_{p-1}
    b: Tensor  # (B, G, N, C, 1): write strength


def _joined(past: Optional[Tensor], block: Tensor, dtype: torch.dtype) -> Tensor:
    """Ring and block, (B, G, tokens, D)."""
    rows = block.transpose(1, 2).to(dtype)
    return rows if past is None else torch.cat((past.to(dtype), rows), 2)


def _joined_scalars(past: Optional[Tensor], block: Tensor, keys: Tensor) -> Tensor:
    """(G) or (B, T, G) -> (B, G, tokens, 1)."""
    if block.dim() == 1:
        return block.to(keys.dtype).view(1, -1, 1, 1).expand(*keys.shape[:3], 1)
    return _joined(past, block, keys.dtype).unsqueeze(3)


def _chunk_means(x: Tensor, n: int) -> Tensor:
    """(B, G, N, C, D) -> (B, G, N, 1, D), not counting the padding behind token n."""
    C = x.shape[3]
    first = torch.arange(0, x.shape[2] * C, C, dtype=x.dtype, device=x.device)
    return x.sum(3, keepdim=True) / (n - first).clamp_max(C).view(-1, 1, 1)


def _decay_mask(of: Tensor, prefix: Tensor, *, strict: bool) -> Tensor:
    """exp(of_p - prefix_j) for j <= p, or j < p if `strict`, else 0: (B, G, N, C, C). Masked before exp, so that no exponent is
    positive."""
    C = prefix.shape[3]
    hidden = torch.ones(C, C, dtype=torch.bool, device=of.device).triu(0 if strict else 1)
    return (of - prefix.transpose(3, 4)).masked_fill(hidden, -torch.inf).exp()


def _delta_residuals(w: _Writes, rule: str, *, exact: bool) -> tuple[Tensor, Tensor]:
    """The residuals of delta rules are u = fixed - by_state A, with A the state at the start of the chunk. In exact mode
    (I + L) u = v - exp(E_p) k A, L_pj = exp(E_p - P_j) b_j k_p . k_j for j < p, with E_p = P_{p-1} for delta and P_p for
    gated_delta."""
    if not exact:
        return w.v, w.k
    exponent = w.prefix if rule == "gated_delta" else w.before
    lower = (w.k @ (w.b * w.k).transpose(3, 4)) * _decay_mask(exponent, w.prefix, strict=True)
    right = torch.cat((w.v, exponent.exp() * w.k), 4)
    solved = torch.linalg.solve_triangular(lower, right, upper=False, left=True, unitriangular=True)
    fixed, by_state = solved.split_with_sizes((w.v.shape[4], w.k.shape[4]), 4)
    return fixed, by_state


class _States(NamedTuple):
    starts: Tensor  # (B, G, N, Dk, Dv): A at the start of each chunk
    values: Tensor  # (B, G, N, C, Dv): b u
    last: Tensor  # (B, G, Dk, Dv)


def _scan(w: _Writes, rule: str, initial: Tensor, *, exact: bool) -> _States:
    """The only sequential part: A' = exp(P_{n-1}) A + sum_j exp(P_{n-1} - P_j) b_j k_j^T u_j."""
    end = w.prefix[:, :, :, -1:]
    key_t = ((end - w.prefix).exp() * w.k).transpose(3, 4)  # (B, G, N, Dk, C)
    decay = end.exp()
    starts, A = [], initial
    if rule in ("delta", "gated_delta"):
        fixed, factor = _delta_residuals(w, rule, exact=exact)
        fixed, factor = w.b * fixed, w.b * factor
        values = []
        for c in range(w.k.shape[2]):
            starts.append(A)
            values.append(fixed[:, :, c] - factor[:, :, c] @ A)
            A = decay[:, :, c] * A + key_t[:, :, c] @ values[-1]
        return _States(torch.stack(starts, 2), torch.stack(values, 2), A)
    written = key_t @ (w.b * w.v)
    if rule == "wedge":
        written = written - written.transpose(3, 4)
    for c in range(w.k.shape[2]):
        starts.append(A)
        A = decay[:, :, c] * A + written[:, :, c]
    return _States(torch.stack(starts, 2), w.b * w.v, A)


def _read(q: Tensor, C: int, w: _Writes, states: _States, rule: str, *, exact: bool) -> Tensor:
    """q (B, G, R, tokens, Dk), which pair with the writes one to one -> (B, G, R, tokens, Dv)."""
    R, tokens = q.shape[2:4]
    flat = _chunked(q, C).transpose(2, 3).flatten(3, 4)  # (B, G, N, R * C, Dk)
    reads = (flat @ states.starts).unflatten(3, (R, C))
    if exact:
        mask = _decay_mask(w.prefix, w.prefix, strict=False).unsqueeze(3)  # (B, G, N, 1, C, C)

        def masked(keys: Tensor, values: Tensor) -> Tensor:
            scores = (flat @ keys.transpose(3, 4)).unflatten(3, (R, C)) * mask
            return (scores.flatten(3, 4) @ values).unflatten(3, (R, C))

        reads = w.prefix.exp().unsqueeze(3) * reads + masked(w.k, states.values)
        if rule == "wedge":
            reads = reads - masked(w.v, w.b * w.k)
    return reads.transpose(2, 3).flatten(3, 4)[:, :, :, :tokens]


def memory_scan_composite(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, write_strength: Tensor, past_k: Optional[Tensor],
    past_v: Optional[Tensor], past_log_decay: Optional[Tensor], past_write_strength: Optional[Tensor],
    initial: Optional[Tensor], lag: int, rule: str, mode: str, chunk: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`memory_scan` for any device and dtype, with any number of derivatives; computes in float32, or float64 for inputs of that.
    Checks nothing."""
    B, T, H, Dk = q.shape
    G, Dv = k.shape[2], v.shape[3]
    P = 0 if past_k is None else past_k.shape[2]
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    start = q.new_zeros((B, G, Dk, Dv), dtype=dtype) if initial is None else initial.to(dtype)
    grouped = q.to(dtype).reshape(B, T, G, H // G, Dk).permute(0, 2, 3, 1, 4)  # (B, G, R, T, Dk)
    exact = mode == "exact"
    # The first queries come before any write: the ring is still filling.
    leading = min(T, lag - P) if exact else 0
    written = T - leading
    reads = [grouped[:, :, :, :leading] @ start.unsqueeze(2)]
    final = start.clone()
    if written > 0:
        C = min(EXACT_CHUNK if exact else chunk, written)
        keys = _joined(past_k, k, dtype)
        rows = (
            keys,
            _joined(past_v, v, dtype),
            _joined_scalars(past_log_decay, log_decay, keys),
            _joined_scalars(past_write_strength, write_strength, keys),
        )
        chunks = [_chunked(x[:, :, :written], C) for x in rows]
        if mode == "chunk_mean":
            chunks = [_chunk_means(x, written) for x in chunks]
        prefix = chunks[2].cumsum(3)
        before = pad(prefix[:, :, :, :-1], (0, 0, 1, 0))
        writes = _Writes(k=chunks[0], v=chunks[1], prefix=prefix, before=before, b=chunks[3])
        states = _scan(writes, rule, start, exact=exact)
        reads.append(_read(grouped[:, :, :, leading:], C, writes, states, rule, exact=exact))
        final = states.last
    joined = torch.cat(reads, 3).permute(0, 3, 1, 2, 4).reshape(B, T, H, Dv)
    return joined.to(q.dtype).contiguous(), final
