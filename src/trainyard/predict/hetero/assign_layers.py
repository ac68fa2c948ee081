"""Which layers each pipeline stage has, where stages are unlike: the assignment that takes least time, found exactly.

Stages stand in a given order and each has a run of layers, at least one, so that the first layers' best assignment to
the first stages is part of the whole's: dynamic programming over (stage, layers so far) misses nothing, whatever a run
costs on a stage and whichever runs it refuses. P stages of L layers take P x L^2 / 2 additions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Costs = npt.NDArray[np.float64]
"""[stage, first, end]: seconds of a stage that has layers `first` up to `end`; infinite where it may not."""
_LESS = 1 - 1e-12
_EVEN = 1e-9
"""By how much a stage that takes as long as the slowest counts more than its time, so that of equal assignments the
most even is found."""


def assign(costs: Costs, micro_batches: int) -> tuple[int, ...] | None:
    """How many layers each stage has, so that the micro-batches pass soonest: the first through all stages, the others
    at the pace of the slowest; or None where no assignment is allowed.

    At any pace that the slowest stage keeps to, the least sum is found; from the slowest pace that could pay downwards.
    """
    slowest, others = pace(costs), micro_batches - 1
    costs = costs * (1 + _EVEN * costs / slowest) if 0 < slowest < np.inf else costs
    slowest = pace(costs)
    best = _least_sum(costs, slowest)
    if best is None:
        return None
    least = others * slowest + best.total
    allowed, found = np.inf, _least_sum(costs)
    while found is not None and others * slowest + found.total < least:
        if others * found.slowest + found.total < least:
            best, least = found, others * found.slowest + found.total
        allowed = min(found.slowest * _LESS, (least - found.total) / max(others, 1))
        found = _least_sum(costs, allowed)
    return tuple(np.diff(best.ends, prepend=0).tolist())


def pace(costs: Costs) -> float:
    """The least time that the slowest stage can have."""
    reached = np.full(costs.shape[1], np.inf)
    reached[0] = 0.0
    for stage in costs:
        reached = np.min(np.maximum(reached[:, None], stage), axis=0)
    return float(reached[-1])


class _LayerCut(NamedTuple):
    """Where each stage ends; seconds of all stages, and of the slowest."""

    ends: list[int]
    total: float
    slowest: float


def _least_sum(costs: Costs, allowed: float = np.inf) -> _LayerCut | None:
    """With no stage above `allowed`; None where there is no such assignment."""
    costs = np.where(costs <= allowed, costs, np.inf)
    total = np.full(costs.shape[1], np.inf)
    total[0] = 0.0
    came: list[npt.NDArray[np.intp]] = []
    for stage in costs:
        through = total[:, None] + stage
        came.append(np.argmin(through, axis=0))
        total = np.min(through, axis=0)
    if total[-1] == np.inf:
        return None
    ends = [costs.shape[1] - 1]
    for before in reversed(came[1:]):
        ends.append(int(before[ends[-1]]))
    ends.reverse()
    each = [stage[first, end] for stage, first, end in zip(costs, [0, *ends], ends)]
    return _LayerCut(ends, float(total[-1]), float(max(each)))
