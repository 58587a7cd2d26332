"""Tensors as the kernels see them: addresses and strides."""

from collections.abc import Iterable
from typing import Optional

import torch

from .. import errors

View = Optional[tuple[int, int, int, int]]

TOKEN_MAJOR = (0, 2, 1)  # (B, T, heads[, D])
HEAD_MAJOR = (0, 1, 2)  # (B, heads, tokens[, D])


def with_rows(x: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """The tensor, or a copy if the numbers of a row are not adjacent."""
    if x is None or x.dim() < 4 or x.shape[-1] <= 1 or x.stride(-1) == 1:
        return x
    return x.contiguous()


def view(x: Optional[torch.Tensor], dims: tuple[int, int, int]) -> View:
    """Only while the tensor lives."""
    if x is None:
        return None
    batch, head, token = dims
    return x.data_ptr(), x.stride(batch), x.stride(head), x.stride(token)


def scalars(x: torch.Tensor) -> View:
    """A number for each head, (G), or for each token and head, (B, T, G)."""
    return (x.data_ptr(), 0, x.stride(0), 0) if x.dim() == 1 else view(x, TOKEN_MAJOR)


def expect(op: str, name: str, x: Optional[torch.Tensor], sizes: Iterable[int]) -> None:
    """Refuses a tensor of other sizes."""
    if x is not None and tuple(x.shape) != tuple(sizes):
        raise errors.InvalidArgumentError(f"{op}: {name} must have sizes {tuple(sizes)}, not {tuple(x.shape)}")


def is_fused(tensors: Iterable[Optional[torch.Tensor]]) -> bool:
    """Whether the kernels take them: float32, float16 or bfloat16 on the CPU, of which they compute in float32."""
    floats = (torch.float32, torch.float16, torch.bfloat16)
    return all(x is None or (x.device.type == "cpu" and x.dtype in floats) for x in tensors)


def needs_gradient(tensors: Iterable[Optional[torch.Tensor]]) -> bool:
    """Whether autograd will ask for the gradients of an op of these."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def as_float(x: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """In float32, differentiably."""
    return None if x is None else x.float()


def refuse_vmap(name: str) -> None:
    """vmap would call the op once for each element: the op's own batch dimension is what people want."""

    def refuse(*_: object, **__: object) -> None:
        raise errors.UnsupportedError(
            f"{name} is not for vmap: it has a batch dimension of its own; stack the sequences along it"
        )

    if hasattr(torch.library, "register_vmap"):  # from torch 2.5
        torch.library.register_vmap(f"tensorcache::{name}", refuse)
