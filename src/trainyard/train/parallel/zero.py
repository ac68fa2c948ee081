"""ZeRO-1: weights and gradients are replicated, optimizer state is sharded (Rajbhandari et al. 2020, arXiv:1910.02054,
section 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainyard.train.parallel.all_gather_parts import all_gather_parts

Named = Sequence[tuple[str, nn.Parameter]]


class Zero(torch.optim.Optimizer):
    """Updates the parameters that this rank owns, then all-gathers all parameters from their owners.

    Parameters are not split, so optimizers see full matrices, and each parameter's state has one owner. `state` and
    `param_groups` are those of the owned parameters. Gradients must be equal on all ranks of `group`.
    """

    def __init__(self, named: Named, group: dist.ProcessGroup, make: Callable[[Named], torch.optim.Optimizer]) -> None:
        """Divides the named parameters over the ranks of `group`. `make` builds the optimizer of a part, for this
        rank's (`inner`; None if the part is empty). `parts`: the (name, parameter) pairs of each rank."""
        super().__init__([parameter for _, parameter in named], {})
        self.all_parameters = [parameter for _, parameter in named]
        self.group = group
        self.parts = divide(named, group.size())
        own_parameters = self.parts[group.rank()]
        self.inner = make(own_parameters) if own_parameters else None
        self.param_groups = self.inner.param_groups if self.inner else []
        self.state = self.inner.state if self.inner else self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates this rank's parameters, then all-gathers all parameters from their owners."""
        loss = self.inner.step(closure) if self.inner else None
        all_gather_parts([[parameter for _, parameter in part] for part in self.parts], self.group)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parameters, including those owned by other ranks."""
        for parameter in self.all_parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()


def divide(named: Named, ranks: int) -> list[Named]:
    """Assigns the named parameters to ranks: the largest first, each to the rank with the fewest elements. Returns
    those of each rank. Deterministic."""
    parameters_per_rank: list[list[tuple[str, nn.Parameter]]] = [[] for _ in range(ranks)]
    elements_per_rank = [0] * ranks
    for name, parameter in sorted(named, key=lambda pair: (-pair[1].numel(), pair[0])):
        lightest_rank = elements_per_rank.index(min(elements_per_rank))
        parameters_per_rank[lightest_rank].append((name, parameter))
        elements_per_rank[lightest_rank] += parameter.numel()
    return list(parameters_per_rank)
