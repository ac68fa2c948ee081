"""What travels between the ranks that divide tables: ids to who has their rows, sums of rows back.

Backward everything is divided by the number of ranks: each has a loss of its own, and a table's gradient is that of
their mean, as everybody else's is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Since torch 2.13 under these names; the old ones warn.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The rows of all ranks, in order. No gradient goes back."""
    whole = x.new_empty((x.shape[0] * group.size(), *x.shape[1:]))
    _all_gather(whole, x.contiguous(), group=group)
    return whole


def trade(x: Tensor, leaving: Sequence[int], coming: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """Values in order, `leaving[r]` of them for rank r, for `coming[r]` from rank r."""
    got = x.new_empty(sum(coming))
    dist.all_to_all_single(got, x.contiguous(), list(coming), list(leaving), group=group)
    return got


def send_back(x: Tensor, leaving: Sequence[int], coming: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """`trade`, through which gradients go."""
    return _SendBack.apply(x, leaving, coming, group)  # pyright: ignore[reportReturnType]


def add_up(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """This rank's rows of the sum over all ranks."""
    return _AddUp.apply(x, group)  # pyright: ignore[reportReturnType]


class _SendBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, leaving: Sequence[int], coming: Sequence[int], group: dist.ProcessGroup) -> Tensor:
        ctx.back = (coming, leaving, group)
        return trade(x, leaving, coming, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return trade(grads[0], *ctx.back) / ctx.back[2].size(), None, None, None


class _AddUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        mine = x.new_empty((x.shape[0] // group.size(), *x.shape[1:]))
        _reduce_scatter(mine, x.contiguous(), group=group)
        return mine

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return gather(grads[0], ctx.group) / ctx.group.size(), None
