"""Collectives that gradients go back through, over the first dimension of a tensor."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Since torch 2.13 under these names; the old ones warn.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Counts = list[int] | None
"""Rows for each rank; None: as many for each."""


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _added_up(grads[0], ctx.group), None


class _AddUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _added_up(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _gathered(grads[0], ctx.group), None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, leaving: Counts, coming: Counts) -> Tensor:
        ctx.back = (group, coming, leaving)
        return _exchanged(x, group, leaving, coming)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grads[0], *ctx.back), None, None, None


def _gathered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    whole = x.new_empty((x.shape[0] * group.size(), *x.shape[1:]))
    all_gather(whole, x.contiguous(), group=group)
    return whole


def _added_up(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    mine = x.new_empty((x.shape[0] // group.size(), *x.shape[1:]))
    reduce_scatter(mine, x.contiguous(), group=group)
    return mine


def _exchanged(x: Tensor, group: dist.ProcessGroup, leaving: Counts, coming: Counts) -> Tensor:
    got = x.new_empty((len(x) if coming is None else sum(coming), *x.shape[1:]))
    dist.all_to_all_single(got, x.contiguous(), coming, leaving, group=group)
    return got


def gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The parts of all ranks, in order; a part's gradient is the sum of what all ranks say of it."""
    return _Gather.apply(x, group)  # pyright: ignore[reportReturnType]


def add_up(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """This rank's part of the sum over all ranks; its gradient goes to all of them."""
    return _AddUp.apply(x, group)  # pyright: ignore[reportReturnType]


def exchange(x: Tensor, group: dist.ProcessGroup, leaving: Counts = None, coming: Counts = None) -> Tensor:
    """In order, `leaving[r]` rows to rank r, and `coming[r]` from it; of equal parts without."""
    return _Exchange.apply(x, group, leaving, coming)  # pyright: ignore[reportReturnType]
