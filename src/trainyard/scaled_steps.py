"""Steps of our own trainings whose loss is scaled, for packages that record them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class ScaledStep(NamedTuple):
    """`scale`: of the step's loss over all ranks; `factor`: by which this rank multiplied its loss; `is_skipped`: the
    update is not applied, as gradients overflowed."""

    scale: float
    factor: float
    is_skipped: bool


observers: list[Callable[[ScaledStep], object]] = []
"""Called after the gradients of a step, before its update."""


def notify(step: ScaledStep) -> None:
    """Calls all observers."""
    for observe in observers:
        observe(step)
