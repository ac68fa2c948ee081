"""ZeRO-1: weights and gradients are on every rank, the optimizer's state is divided (Rajbhandari et al. 2020,
arXiv:1910.02054, section 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Named = Sequence[tuple[str, nn.Parameter]]


class Zero(torch.optim.Optimizer):
    """Updates this rank's own parameters, then gets the others' new values from who owns them.

    Parameters are whole: an optimizer that needs a matrix has it, and state has the parameter's name and one owner.
    `state` and `param_groups` are those of the rank's own; gradients must be the same on all ranks of `group`.
    """

    def __init__(self, named: Named, group: dist.ProcessGroup, make: Callable[[Named], torch.optim.Optimizer]) -> None:
        super().__init__([parameter for _, parameter in named], {})
        self.every = [parameter for _, parameter in named]
        self.group = group
        self.parts = divide(named, group.size())
        mine = self.parts[group.rank()]
        self.inner = make(mine) if mine else None
        self.param_groups = self.inner.param_groups if self.inner else []
        self.state = self.inner.state if self.inner else self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        said = self.inner.step(closure) if self.inner else None
        for owner, part in enumerate(self.parts):
            if part:
                self._from_owner(owner, [parameter for _, parameter in part])
        return said

    def _from_owner(self, owner: int, parameters: Sequence[nn.Parameter]) -> None:
        flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
        dist.broadcast(flat, group=self.group, group_src=owner)
        if owner != self.group.rank():
            for parameter, values in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
                parameter.copy_(values.view_as(parameter))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of all parameters: the others' gradients are here too."""
        for parameter in self.every:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()


def divide(named: Named, ranks: int) -> list[Named]:
    """Into one part a rank, each parameter whole: the largest first, to whoever has least. The same on every rank."""
    parts: list[list[tuple[str, nn.Parameter]]] = [[] for _ in range(ranks)]
    elements = [0] * ranks
    for name, parameter in sorted(named, key=lambda pair: (-pair[1].numel(), pair[0])):
        least = elements.index(min(elements))
        parts[least].append((name, parameter))
        elements[least] += parameter.numel()
    return list(parts)
