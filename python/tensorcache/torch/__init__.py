"""The memory and the window as ops of torch, with gradients, and models made of them: the same kernels that the library runs on.

>>> import torch
>>> from tensorcache.torch import memory_scan, window_attention
>>> q, k, v = (torch.randn(2, 100, 4, 16, requires_grad=True) for _ in range(3))
>>> decay, strength = torch.full((4,), 0.995).log(), torch.full((4,), 0.05)
>>> local = window_attention(q, k, v, window=32)
>>> memory = memory_scan(q, k, v, decay, strength, lag=32)       # what left the window
>>> (local + memory.reads).sum().backward()
>>> q.grad.shape, memory.final_state.shape
(torch.Size([2, 100, 4, 16]), torch.Size([2, 4, 16, 16]))
"""

from ._attention import TensorCacheAttention
from ._memory_scan import MemoryScan, memory_scan
from ._model import TensorCacheLM
from ._window_attention import window_attention

__all__ = ["MemoryScan", "TensorCacheAttention", "TensorCacheLM", "memory_scan", "window_attention"]
