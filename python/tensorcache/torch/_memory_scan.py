"""The memory as an op of torch; include/tensorcache/kernels/memory_scan.h has the recurrence."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from .. import _core, errors
from ._memory_scan_composite import memory_scan_composite
from ._views import (
    HEAD_MAJOR,
    TOKEN_MAJOR,
    View,
    as_float,
    expect,
    is_fused,
    needs_gradient,
    refuse_vmap,
    scalars,
    view,
    with_rows,
)

Sizes = tuple[int, int, int, int, int, int, int, int, str, str, int]
# Of an op's tensors, in the order of its arguments.
Inputs = tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Optional[Tensor], Optional[Tensor], Optional[Tensor], Optional[Tensor],
    Optional[Tensor],
]  # fmt: skip

RULES = ("outer", "delta", "gated_delta", "wedge")
MODES = ("exact", "chunk_start", "chunk_mean")


class MemoryScan(NamedTuple):
    """What `memory_scan` returns."""

    reads: Tensor
    """(B, T, H, Dv), in the dtype of q."""
    final_state: Tensor
    """(B, G, Dk, Dv), float32, or float64 for inputs of that."""


def _sizes(q: Tensor, k: Tensor, v: Tensor, past_k: Optional[Tensor], lag: int, rule: str, mode: str, chunk: int) -> Sizes:
    B, T, H, Dk = (int(n) for n in q.shape)
    past = 0 if past_k is None else int(past_k.shape[2])
    return (B, H, int(k.shape[2]), T, Dk, int(v.shape[3]), lag, past, rule, mode, chunk)


def _rows(tensors: Inputs) -> Inputs:
    q, k, v, g, b, past_k, past_v, past_g, past_b, initial = (with_rows(x) for x in tensors)
    assert q is not None and k is not None and v is not None and g is not None and b is not None
    return q, k, v, g, b, past_k, past_v, past_g, past_b, initial


def _input_views(tensors: Inputs) -> list[View]:
    q, k, v, g, b, past_k, past_v, past_g, past_b, _ = tensors
    views = [view(q, TOKEN_MAJOR), view(k, TOKEN_MAJOR), view(v, TOKEN_MAJOR), scalars(g), scalars(b)]
    if past_k is None:
        return views + [None] * 4
    # A number for each head is that of the past, too.
    past_scalars = [
        scalars(of_head) if own is None else view(own, HEAD_MAJOR) for own, of_head in ((past_g, g), (past_b, b))
    ]
    return views + [view(past_k, HEAD_MAJOR), view(past_v, HEAD_MAJOR)] + past_scalars


def _forward(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, write_strength: Tensor, past_k: Optional[Tensor],
    past_v: Optional[Tensor], past_log_decay: Optional[Tensor], past_write_strength: Optional[Tensor],
    initial: Optional[Tensor], lag: int, rule: str, mode: str, chunk: int, save: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    sizes = _sizes(q, k, v, past_k, lag, rule, mode, chunk)
    B, H, G, T, Dk, Dv = sizes[:6]
    tensors = _rows((q, k, v, log_decay, write_strength, past_k, past_v, past_log_decay, past_write_strength, initial))
    reads, final = q.new_empty((B, T, H, Dv)), q.new_empty((B, G, Dk, Dv))
    saved = q.new_empty(_core.memory_scan_saved(sizes) if save else 0)
    views = _input_views(tensors) + [view(tensors[9], HEAD_MAJOR), view(reads, TOKEN_MAJOR), view(final, HEAD_MAJOR)]
    views.append((saved.data_ptr(), 0, 0, 0) if save else None)
    _core.memory_scan_forward(sizes, views, torch.get_num_threads())
    return reads, final, saved


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, write_strength: Tensor, past_k: Optional[Tensor],
    past_v: Optional[Tensor], past_log_decay: Optional[Tensor], past_write_strength: Optional[Tensor],
    initial: Optional[Tensor], lag: int, rule: str, mode: str, chunk: int, save: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    B, T, H, Dk = q.shape
    G, Dv = k.shape[2], v.shape[3]
    # The number of what is saved depends on how the kernel cuts the block: sizes are fixed here.
    saved = _core.memory_scan_saved(_sizes(q, k, v, past_k, lag, rule, mode, chunk)) if save else 0
    return q.new_empty((B, T, H, Dv)), q.new_empty((B, G, Dk, Dv)), q.new_empty(saved)


def _backward(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, write_strength: Tensor, past_k: Optional[Tensor],
    past_v: Optional[Tensor], past_log_decay: Optional[Tensor], past_write_strength: Optional[Tensor],
    saved: Tensor, d_reads: Optional[Tensor], d_final: Optional[Tensor], needed: list[bool], lag: int, rule: str,
    mode: str, chunk: int,
) -> list[Tensor]:  # fmt: skip
    sizes = _sizes(q, k, v, past_k, lag, rule, mode, chunk)
    B, H, G, T, Dk, Dv = sizes[:6]
    past = sizes[7]
    tensors = _rows((q, k, v, log_decay, write_strength, past_k, past_v, past_log_decay, past_write_strength, None))
    gradients = _backward_fake(
        q, k, v, log_decay, write_strength, past_k, past_v, past_log_decay, past_write_strength, saved, d_reads, d_final,
        needed, lag, rule, mode, chunk,
    )  # fmt: skip
    reads_rows = q.new_zeros(Dv).expand(B, T, H, Dv) if d_reads is None else with_rows(d_reads)
    final_rows = with_rows(d_final)
    # Gradients of numbers for each head come for each token, ring and block joined, and are summed below.
    per_token = {i: q.new_empty((B, G, past + T)) for i in (3, 4) if needed[i] or needed[i + 4]}

    def wanted(i: int, dims: tuple[int, int, int]) -> View:
        return view(gradients[i], dims) if needed[i] else None

    def of_scalars(i: int, block: bool) -> View:
        if i not in per_token:
            return None
        if block:
            return view(per_token[i][:, :, past:], HEAD_MAJOR) if needed[i] else None
        return view(per_token[i][:, :, :past], HEAD_MAJOR) if past_k is not None else None

    views = _input_views(tensors)
    views += [(saved.data_ptr(), 0, 0, 0), view(reads_rows, TOKEN_MAJOR), view(final_rows, HEAD_MAJOR)]
    views += [wanted(0, TOKEN_MAJOR), wanted(1, TOKEN_MAJOR), wanted(2, TOKEN_MAJOR), of_scalars(3, True), of_scalars(4, True)]
    views += [wanted(5, HEAD_MAJOR), wanted(6, HEAD_MAJOR), of_scalars(3, False), of_scalars(4, False)]
    views.append(wanted(9, HEAD_MAJOR))
    _core.memory_scan_backward(sizes, views, torch.get_num_threads())
    for i, x in ((3, log_decay), (4, write_strength)):
        if needed[i]:
            gradients[i] = per_token[i].sum((0, 2)) if x.dim() == 1 else per_token[i][:, :, past:].transpose(1, 2).contiguous()
        if needed[i + 4]:
            gradients[i + 4] = per_token[i][:, :, :past].contiguous()
    return gradients


def _backward_fake(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, write_strength: Tensor, past_k: Optional[Tensor],
    past_v: Optional[Tensor], past_log_decay: Optional[Tensor], past_write_strength: Optional[Tensor],
    saved: Tensor, d_reads: Optional[Tensor], d_final: Optional[Tensor], needed: list[bool], lag: int, rule: str,
    mode: str, chunk: int,
) -> list[Tensor]:  # fmt: skip
    inputs = (q, k, v, log_decay, write_strength, past_k, past_v, past_log_decay, past_write_strength)
    gradients = [q.new_empty(x.shape if need and x is not None else (0,)) for x, need in zip(inputs, needed)]
    initial = (q.shape[0], k.shape[2], q.shape[3], v.shape[3])
    return gradients + [q.new_empty(initial if needed[9] else (0,))]


_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor write_strength, Tensor? past_k, Tensor? past_v, "
    "Tensor? past_log_decay, Tensor? past_write_strength, "
)
_OPTIONS = "int lag, str rule, str mode, int chunk"

_forward_op = torch.library.custom_op(
    "tensorcache::memory_scan", _forward, mutates_args=(), device_types="cpu",
    schema=f"({_TENSORS}Tensor? initial, {_OPTIONS}, bool save) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip
_backward_op = torch.library.custom_op(
    "tensorcache::memory_scan_backward", _backward, mutates_args=(), device_types="cpu",
    schema=f"({_TENSORS}Tensor saved, Tensor? d_reads, Tensor? d_final, bool[] needed, {_OPTIONS}) -> Tensor[]",
)  # fmt: skip
torch.library.register_fake("tensorcache::memory_scan", _forward_fake)
torch.library.register_fake("tensorcache::memory_scan_backward", _backward_fake)
refuse_vmap("memory_scan")


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, lag, rule, mode, chunk, _ = inputs
    ctx.save_for_backward(*tensors[:9], output[2])
    ctx.options = (lag, rule, mode, chunk)
    ctx.has_initial = tensors[9] is not None
    ctx.set_materialize_grads(False)


def _gradients(ctx, d_reads, d_final, d_saved):  # type: ignore[no-untyped-def]
    *tensors, saved = ctx.saved_tensors
    present = [x is not None for x in tensors] + [ctx.has_initial]
    needed = [has and need for has, need in zip(present, ctx.needs_input_grad[:10])]
    if d_reads is None and d_final is None:
        return (None,) * 15
    found = _backward_op(*tensors, saved, d_reads, d_final, needed, *ctx.options)
    return (*(gradient if need else None for gradient, need in zip(found, needed)), *(None,) * 5)


torch.library.register_autograd("tensorcache::memory_scan", _gradients, setup_context=_setup)


def _check(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, write_strength: Tensor, past_k: Optional[Tensor],
    past_v: Optional[Tensor], past_log_decay: Optional[Tensor], past_write_strength: Optional[Tensor],
    initial: Optional[Tensor], lag: int, rule: str, mode: str, chunk: int,
) -> None:  # fmt: skip
    op = "memory_scan"
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise errors.InvalidArgumentError(f"{op}: q, k and v have 4 dimensions")
    if (past_k is None) != (past_v is None):
        raise errors.InvalidArgumentError(f"{op}: past keys and values come together")
    if past_k is not None and past_k.dim() != 4:
        raise errors.InvalidArgumentError(f"{op}: past_k has 4 dimensions")
    for name, value, known in (("rule", rule, RULES), ("mode", mode, MODES)):
        if value not in known:
            raise errors.InvalidArgumentError(f"{op}: {name} is {value!r}; it can be one of {known}")
    if not torch.compiler.is_compiling():  # then the op says so
        _core.memory_scan_saved(_sizes(q, k, v, past_k, lag, rule, mode, chunk))
    B, T, _, Dk = q.shape
    G, Dv = k.shape[2], v.shape[3]
    P = 0 if past_k is None else past_k.shape[2]
    expect(op, "k", k, (B, T, G, Dk))
    expect(op, "v", v, (B, T, G, Dv))
    expect(op, "past_k", past_k, (B, G, P, Dk))
    expect(op, "past_v", past_v, (B, G, P, Dv))
    expect(op, "initial", initial, (B, G, Dk, Dv))
    for name, x, past in (("log_decay", log_decay, past_log_decay), ("write_strength", write_strength, past_write_strength)):
        if x.dim() == 1:
            expect(op, name, x, (G,))
            if past is not None:
                raise errors.InvalidArgumentError(f"{op}: a {name} for each head is also that of the past; leave past_{name} out")
        else:
            expect(op, name, x, (B, T, G))
            if P > 0 and past is None:
                raise errors.InvalidArgumentError(f"{op}: the past needs a {name} for each token: past_{name}")
            expect(op, f"past_{name}", past, (B, G, P))


def memory_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    write_strength: Tensor,
    *,
    past_k: Optional[Tensor] = None,
    past_v: Optional[Tensor] = None,
    past_log_decay: Optional[Tensor] = None,
    past_write_strength: Optional[Tensor] = None,
    initial: Optional[Tensor] = None,
    lag: int = 0,
    rule: str = "outer",
    mode: str = "exact",
    chunk: int = 0,
) -> MemoryScan:
    """Writes keys and values into a matrix for each head, and reads it with queries.

    q is (B, T, H, Dk), k (B, T, G, Dk), v (B, T, G, Dv); H is a multiple of G, and query head h reads the matrix of head
    h // (H // G). With A the matrix, g the log-decay and b the write strength of token i:

        A <- exp(g) A + b k^T u      u = v (rule "outer"), v - k A ("delta"), v - exp(g) k A ("gated_delta")
        A <- exp(g) A + b (k^T v - v^T k)                                       ("wedge", Dk = Dv)
        r_t = q_t A, after the write of token t - lag

    `log_decay`, at most 0, and `write_strength` are (G), or (B, T, G) for each token. `lag` is the window: a token is written when
    it leaves. A block goes on from `initial` (B, G, Dk, Dv) and the `past` tokens that were not yet written, oldest first: past_k
    (B, G, P, Dk), past_v (B, G, P, Dv), and past_log_decay and past_write_strength (B, G, P) if these are for each token. The
    modes "chunk_start" and "chunk_mean" are the paper's approximations for training, in chunks of `chunk` tokens, with lag 0.

    On the CPU the kernels of the library compute it in float32; float64 and other devices take tensor operations. The kernels have no
    second derivative, and raise DivergedError if a state leaves the finite numbers; tensor operations leave the infinities.

    >>> import torch
    >>> from tensorcache.torch import memory_scan
    >>> k = torch.eye(3).view(1, 3, 1, 3)
    >>> v = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1)
    >>> memory_scan(k.sum(1, keepdim=True).expand(1, 3, 1, 3), k, v, torch.zeros(1), torch.ones(1)).reads.flatten()
    tensor([1., 3., 6.])
    """
    tensors = (q, k, v, log_decay, write_strength, past_k, past_v, past_log_decay, past_write_strength, initial)
    _check(*tensors, lag, rule, mode, chunk)
    if not is_fused(tensors):
        return MemoryScan(*memory_scan_composite(*tensors, lag, rule, mode, chunk))
    reads, final, _ = _forward_op(*(as_float(x) for x in tensors), lag, rule, mode, chunk, needs_gradient(tensors))
    return MemoryScan(reads.to(q.dtype), final)
