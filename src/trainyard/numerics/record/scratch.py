"""Memory for intermediate results on the CPU, where fresh pages cost more time than the arithmetic on them."""

from __future__ import annotations

from threading import local

import torch
from torch import Tensor


class _Buffers(local):
    """The buffers of a thread by name: autograd runs backward passes in threads of its own."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}


_buffers = _Buffers()


def scratch(name: str, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor with undefined elements, valid until the next call with this name in this thread. On accelerators, whose
    allocator keeps memory, it is a new one."""
    if device.type != "cpu":
        return torch.empty(elements, dtype=dtype, device=device)
    buffer = _buffers.by_name.get(name)
    if buffer is None or len(buffer) < elements:
        buffer = _buffers.by_name[name] = torch.empty(elements, dtype=dtype, device=device)
    return buffer[:elements]
