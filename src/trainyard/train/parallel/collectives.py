"""Collectives that gradients go back through, over the first dimension of a tensor."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Since torch 2.13 under these names; the old ones warn.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        whole = x.new_empty((x.shape[0] * group.size(), *x.shape[1:]))
        _all_gather(whole, x.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        mine = grad.new_empty((grad.shape[0] // ctx.group.size(), *grad.shape[1:]))
        _reduce_scatter(mine, grad.contiguous(), group=ctx.group)
        return mine, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchanged(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _exchanged(grads[0], ctx.group), None


def _exchanged(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    got = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(got, x.contiguous(), group=group)
    return got


def gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The parts of all ranks, in order; a part's gradient is the sum of what all ranks say of it."""
    return _Gather.apply(x, group)  # pyright: ignore[reportReturnType]


def exchange(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Part i of n goes to rank i, and what rank i had for this one comes in its place."""
    return _Exchange.apply(x, group)  # pyright: ignore[reportReturnType]
