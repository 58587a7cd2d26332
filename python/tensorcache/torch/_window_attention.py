"""Attention over the window as an op of torch; include/tensorcache/kernels/window_attention.h has the formula."""

from typing import Optional

import torch
from torch import Tensor

from .. import _core, errors
from ._views import HEAD_MAJOR, TOKEN_MAJOR, View, as_float, expect, is_fused, needs_gradient, refuse_vmap, view, with_rows
from ._window_attention_composite import window_attention_composite

Sizes = tuple[int, int, int, int, int, int, int, int, int, int]

# Of the op's tensors, in the order of its arguments.
_DIMS = (TOKEN_MAJOR, TOKEN_MAJOR, TOKEN_MAJOR, HEAD_MAJOR, HEAD_MAJOR, HEAD_MAJOR, HEAD_MAJOR, TOKEN_MAJOR)


def _sizes(q: Tensor, k: Tensor, v: Tensor, past_k: Optional[Tensor], sink_k: Optional[Tensor], window: int, position: int) -> Sizes:
    B, T, H, D = (int(n) for n in q.shape)
    past = 0 if past_k is None else int(past_k.shape[2])
    sinks = 0 if sink_k is None else int(sink_k.shape[2])
    return (B, H, int(k.shape[2]), T, D, int(v.shape[3]), window, past, sinks, position)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, past_k: Optional[Tensor], past_v: Optional[Tensor], sink_k: Optional[Tensor],
    sink_v: Optional[Tensor], q_sink: Optional[Tensor], window: int, position: int, scale: Optional[float],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    tensors = [with_rows(x) for x in (q, k, v, past_k, past_v, sink_k, sink_v, q_sink)]
    out, lse = _forward_fake(q, k, v, past_k, past_v, sink_k, sink_v, q_sink, window, position, scale)
    views = [view(x, dims) for x, dims in zip(tensors, _DIMS)]
    views += [view(out, TOKEN_MAJOR), view(lse, HEAD_MAJOR)]
    sizes = _sizes(q, k, v, past_k, sink_k, window, position)
    _core.window_attention_forward(sizes, views, scale, torch.get_num_threads())
    return out, lse


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, past_k: Optional[Tensor], past_v: Optional[Tensor], sink_k: Optional[Tensor],
    sink_v: Optional[Tensor], q_sink: Optional[Tensor], window: int, position: int, scale: Optional[float],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    B, T, H, _ = q.shape
    return q.new_empty((B, T, H, v.shape[3])), q.new_empty((B, H, T))


def _backward(
    q: Tensor, k: Tensor, v: Tensor, past_k: Optional[Tensor], past_v: Optional[Tensor], sink_k: Optional[Tensor],
    sink_v: Optional[Tensor], q_sink: Optional[Tensor], out: Tensor, lse: Tensor, d_out: Tensor, needed: list[bool],
    window: int, position: int, scale: Optional[float],
) -> list[Tensor]:  # fmt: skip
    tensors = [with_rows(x) for x in (q, k, v, past_k, past_v, sink_k, sink_v, q_sink)]
    gradients = _backward_fake(
        q, k, v, past_k, past_v, sink_k, sink_v, q_sink, out, lse, d_out, needed, window, position, scale
    )
    rows = with_rows(d_out)
    # The kernel computes those of q, k and v in any case.
    written: list[View] = [view(x, dims) for x, dims in zip(gradients[:3], _DIMS)]
    written += [view(x, dims) if need else None for x, dims, need in zip(gradients[3:], _DIMS[3:], needed[3:])]
    views = [view(x, dims) for x, dims in zip(tensors, _DIMS)]
    views += [view(out, TOKEN_MAJOR), view(lse, HEAD_MAJOR), view(rows, TOKEN_MAJOR)]
    sizes = _sizes(q, k, v, past_k, sink_k, window, position)
    _core.window_attention_backward(sizes, views + written, scale, torch.get_num_threads())
    return gradients


def _backward_fake(
    q: Tensor, k: Tensor, v: Tensor, past_k: Optional[Tensor], past_v: Optional[Tensor], sink_k: Optional[Tensor],
    sink_v: Optional[Tensor], q_sink: Optional[Tensor], out: Tensor, lse: Tensor, d_out: Tensor, needed: list[bool],
    window: int, position: int, scale: Optional[float],
) -> list[Tensor]:  # fmt: skip
    optional = zip((past_k, past_v, sink_k, sink_v, q_sink), needed[3:])
    shapes = [x.shape for x in (q, k, v)] + [x.shape if need and x is not None else (0,) for x, need in optional]
    return [q.new_empty(shape) for shape in shapes]


_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? past_k, Tensor? past_v, Tensor? sink_k, Tensor? sink_v, Tensor? q_sink, "
_OPTIONS = "int window, int position, float? scale"

_forward_op = torch.library.custom_op(
    "tensorcache::window_attention", _forward, mutates_args=(), device_types="cpu",
    schema=f"({_TENSORS}{_OPTIONS}) -> (Tensor, Tensor)",
)  # fmt: skip
_backward_op = torch.library.custom_op(
    "tensorcache::window_attention_backward", _backward, mutates_args=(), device_types="cpu",
    schema=f"({_TENSORS}Tensor out, Tensor lse, Tensor d_out, bool[] needed, {_OPTIONS}) -> Tensor[]",
)  # fmt: skip
torch.library.register_fake("tensorcache::window_attention", _forward_fake)
torch.library.register_fake("tensorcache::window_attention_backward", _backward_fake)
refuse_vmap("window_attention")


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, window, position, scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.options = (window, position, scale)
    ctx.set_materialize_grads(False)


def _gradients(ctx, d_out, d_lse):  # type: ignore[no-untyped-def]
    if d_out is None:
        return (None,) * 11
    saved = ctx.saved_tensors
    needed = [x is not None and need for x, need in zip(saved[:8], ctx.needs_input_grad[:8])]
    found = _backward_op(*saved, d_out, needed, *ctx.options)
    return (*(gradient if need else None for gradient, need in zip(found, needed)), *(None,) * 3)


torch.library.register_autograd("tensorcache::window_attention", _gradients, setup_context=_setup)


def _check(
    q: Tensor, k: Tensor, v: Tensor, past_k: Optional[Tensor], past_v: Optional[Tensor], sink_k: Optional[Tensor],
    sink_v: Optional[Tensor], q_sink: Optional[Tensor], window: int, position: int,
) -> None:  # fmt: skip
    def fail(what: str) -> errors.InvalidArgumentError:
        return errors.InvalidArgumentError(f"window_attention: {what}")

    for name, x in (("q", q), ("k", k), ("v", v), ("past_k", past_k), ("sink_k", sink_k)):
        if x is not None and x.dim() != 4:
            raise fail(f"{name} has 4 dimensions, not {x.dim()}")
    if (past_k is None) != (past_v is None) or (sink_k is None) != (sink_v is None):
        raise fail("keys and values of past and sinks come together")
    B, T, H, D = q.shape
    G, Dv = k.shape[2], v.shape[3]
    P = 0 if past_k is None else past_k.shape[2]
    S = 0 if sink_k is None else sink_k.shape[2]
    if G == 0 or H % G != 0:
        raise fail(f"H = {H} query heads must be a multiple of G = {G}")
    if window < 0:
        raise fail(f"the window must not be negative, not {window}; 0 is unbounded")
    if P > position:
        raise fail(f"a past of {P} tokens before position {position}")
    for name, x, sizes in (
        ("k", k, (B, T, G, D)),
        ("v", v, (B, T, G, Dv)),
        ("past_k", past_k, (B, G, P, D)),
        ("past_v", past_v, (B, G, P, Dv)),
        ("sink_k", sink_k, (B, G, S, D)),
        ("sink_v", sink_v, (B, G, S, Dv)),
        ("q_sink", q_sink, (B, T, H, D)),
    ):
        expect("window_attention", name, x, sizes)


def window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    past_k: Optional[Tensor] = None,
    past_v: Optional[Tensor] = None,
    sink_k: Optional[Tensor] = None,
    sink_v: Optional[Tensor] = None,
    q_sink: Optional[Tensor] = None,
    window: int = 0,
    position: int = 0,
    scale: Optional[float] = None,
) -> Tensor:
    """Causal softmax attention over the last `window` keys, self included; 0 is unbounded. Gives (B, T, H, Dv).

    q is (B, T, H, D), k (B, T, G, D), v (B, T, G, Dv); H is a multiple of G, and query head h reads head h // (H // G). The block
    starts at `position`; the keys and values of the P tokens before it are `past_k` (B, G, P, D) and `past_v`, oldest first. The sinks,
    `sink_k` (B, G, S, D) and `sink_v`, are the first tokens of the sequence: a query sees those that have left its window, with
    `q_sink` (B, T, H, D) in q's place if that is given. `scale` is 1 / sqrt(D) if it is not given.

    On the CPU the kernels of the library compute it in float32, and never make a T x T matrix; float64 and other devices take tensor
    operations. The kernels have no second derivative.

    >>> import torch
    >>> from tensorcache.torch import window_attention
    >>> v = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1, 1)
    >>> window_attention(torch.zeros(1, 4, 1, 8), torch.zeros(1, 4, 1, 8), v, window=2).flatten()
    tensor([1.0000, 1.5000, 2.5000, 3.5000])
    """
    tensors = (q, k, v, past_k, past_v, sink_k, sink_v, q_sink)
    _check(*tensors, window, position)
    if not is_fused(tensors):
        return window_attention_composite(*tensors, window, position, scale)
    out, _ = _forward_op(*(as_float(x) for x in tensors), window, position, scale)
    result: Tensor = out.to(q.dtype)
    return result
