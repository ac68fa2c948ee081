"""Differentiable collectives over the first dimension of a tensor."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 renamed them; the old names warn.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Counts = list[int] | None
"""Rows per rank; None: equal parts."""


class _Gather(torch.autograd.Function):
    """All-gather; its gradient is reduce-scattered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_gather(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter(grads[0], ctx.group), None


class _AddUp(torch.autograd.Function):
    """Reduce-scatter; its gradient is all-gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _all_gather(grads[0], ctx.group), None


class _Exchange(torch.autograd.Function):
    """All-to-all; its gradient is sent back by the reverse all-to-all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, send_counts: Counts, receive_counts: Counts) -> Tensor:
        ctx.back = (group, receive_counts, send_counts)
        return _all_to_all(x, group, send_counts, receive_counts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(grads[0], *ctx.back), None, None, None


def _all_gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    output = x.new_empty((x.shape[0] * group.size(), *x.shape[1:]))
    all_gather(output, x.contiguous(), group=group)
    return output


def _reduce_scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    output = x.new_empty((x.shape[0] // group.size(), *x.shape[1:]))
    reduce_scatter(output, x.contiguous(), group=group)
    return output


def _all_to_all(x: Tensor, group: dist.ProcessGroup, send_counts: Counts, receive_counts: Counts) -> Tensor:
    output = x.new_empty((len(x) if receive_counts is None else sum(receive_counts), *x.shape[1:]))
    dist.all_to_all_single(output, x.contiguous(), receive_counts, send_counts, group=group)
    return output


def gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """All-gathers `x` in rank order. Backward: reduce-scatter."""
    return _Gather.apply(x, group)  # pyright: ignore[reportReturnType]


def sum_and_scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Reduce-scatters `x`. Backward: all-gather."""
    return _AddUp.apply(x, group)  # pyright: ignore[reportReturnType]


def exchange(x: Tensor, group: dist.ProcessGroup, send_counts: Counts = None, receive_counts: Counts = None) -> Tensor:
    """All-to-all: sends `send_counts[r]` rows to rank r and receives `receive_counts[r]`, in order; equal parts if
    None."""
    return _Exchange.apply(x, group, send_counts, receive_counts)  # pyright: ignore[reportReturnType]
