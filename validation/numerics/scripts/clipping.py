"""Gradient clipping by a norm that a script computes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

MAX_NORM = 0.3


def squares(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The sum of squares of the gradients."""
    return torch.stack([p.grad.square().sum() for p in parameters if p.grad is not None]).sum()


def scale_gradients(parameters: Iterable[nn.Parameter], norm: Tensor) -> None:
    """Scales gradients to a norm of at most `MAX_NORM`. `norm`: their norm."""
    factor = (MAX_NORM / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
