"""Process group and differentiable collectives of the scripts with two ranks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@contextmanager
def process_group() -> Iterator[tuple[int, int]]:
    """Joins the process group of torchrun's environment; gives rank and world size."""
    dist.init_process_group("gloo")
    yield dist.get_rank(), dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)  # gloo's thread aborts if it releases the last collective while the interpreter exits


class SumOutputs(torch.autograd.Function):
    """All-reduces partial outputs; its gradient is passed on unchanged (`g` of Shoeybi et al. 2019)."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor) -> Tensor:
        total = partial.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class SumInputGradients(torch.autograd.Function):
    """Passes its input on unchanged and all-reduces its gradient (`f` of Shoeybi et al. 2019)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


class AllToAll(torch.autograd.Function):
    """Exchanges equal blocks of rows: block r is sent to rank r, and block r of the result is from rank r."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows.contiguous())
        return received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        received = torch.empty_like(gradient)
        dist.all_to_all_single(received, gradient.contiguous())
        return received


class GatherRanks(torch.autograd.Function):
    """All-gathers equal tensors: [...] -> [rank, ...]. The gradient is the sum over the ranks of that for this one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        gathered = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, x.contiguous())
        return torch.stack(gathered)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total[dist.get_rank()]


def sum_over_ranks(value: Tensor) -> Tensor:
    """The sum of `value` over all ranks, without a gradient."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replaces each gradient by its mean over the ranks."""
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
