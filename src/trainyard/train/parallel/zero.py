"""ZeRO-1: weights and gradients are replicated, optimizer state is sharded (Rajbhandari et al. 2020, arXiv:1910.02054,
section 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Named = Sequence[tuple[str, nn.Parameter]]


class Zero(torch.optim.Optimizer):
    """Updates the parameters that this rank owns, then broadcasts all parameters from their owners.

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
        """Updates this rank's parameters, then receives the others' from their owners."""
        loss = self.inner.step(closure) if self.inner else None
        for owner, part in enumerate(self.parts):
            if part:
                self._from_owner(owner, [parameter for _, parameter in part])
        return loss

    def _from_owner(self, owner: int, parameters: Sequence[nn.Parameter]) -> None:
        """Broadcasts the parameters that rank `owner` has updated, as one flat tensor."""
        flat_values = torch.cat([parameter.detach().flatten() for parameter in parameters])
        dist.broadcast(flat_values, group=self.group, group_src=owner)
        if owner != self.group.rank():
            for parameter, values in zip(
                parameters, flat_values.split([parameter.numel() for parameter in parameters])
            ):
                parameter.copy_(values.view_as(parameter))

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
