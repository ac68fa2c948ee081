"""Exact partition of layers over heterogeneous pipeline stages: the assignment with the least time.

Stages have a given order and each has a contiguous run of at least one layer, so the problem has optimal substructure:
dynamic programming over (stage, layers so far) is exact, for any cost of a run on a stage, including infinite ones.
P stages of L layers take P x L^2 / 2 additions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Costs = npt.NDArray[np.float64]
"""[stage, first, end]: seconds of a stage with layers `first` to `end` (exclusive); infinite if it does not fit."""
_LESS = 1 - 1e-12
_EVEN = 1e-9
"""Relative penalty of a stage that takes as long as the slowest one: a tie-break in favour of the most even
assignment."""


def assign(costs: Costs, micro_batches: int) -> tuple[int, ...] | None:
    """Layers per stage that minimise the time of all micro-batches: the first passes through all stages, the others
    follow at the pace of the slowest. None if no assignment is feasible.

    Finds the least sum of stage times under a limit on the slowest stage, for ever lower limits.
    """
    slowest, remaining = pace(costs), micro_batches - 1
    costs = costs * (1 + _EVEN * costs / slowest) if 0 < slowest < np.inf else costs
    slowest = pace(costs)
    best = _least_sum(costs, slowest)
    if best is None:
        return None
    least_time = remaining * slowest + best.total
    limit, candidate = np.inf, _least_sum(costs)
    while candidate is not None and remaining * slowest + candidate.total < least_time:
        if remaining * candidate.slowest + candidate.total < least_time:
            best, least_time = candidate, remaining * candidate.slowest + candidate.total
        limit = min(candidate.slowest * _LESS, (least_time - candidate.total) / max(remaining, 1))
        candidate = _least_sum(costs, limit)
    return tuple(np.diff(best.ends, prepend=0).tolist())


def pace(costs: Costs) -> float:
    """The least possible time of the slowest stage, in seconds."""
    reached = np.full(costs.shape[1], np.inf)
    reached[0] = 0.0
    for stage in costs:
        reached = np.min(np.maximum(reached[:, None], stage), axis=0)
    return float(reached[-1])


class _LayerCut(NamedTuple):
    """An assignment: the end of each stage, seconds of all stages, and of the slowest."""

    ends: list[int]
    total: float
    slowest: float


def _least_sum(costs: Costs, allowed: float = np.inf) -> _LayerCut | None:
    """The assignment with the least sum and no stage above `allowed` seconds; None if there is none."""
    costs = np.where(costs <= allowed, costs, np.inf)
    total = np.full(costs.shape[1], np.inf)
    total[0] = 0.0
    predecessors: list[npt.NDArray[np.intp]] = []
    for stage in costs:
        totals = total[:, None] + stage
        predecessors.append(np.argmin(totals, axis=0))
        total = np.min(totals, axis=0)
    if total[-1] == np.inf:
        return None
    ends = [costs.shape[1] - 1]
    for predecessor in reversed(predecessors[1:]):
        ends.append(int(predecessor[ends[-1]]))
    ends.reverse()
    stage_seconds = [stage[first, end] for stage, first, end in zip(costs, [0, *ends], ends)]
    return _LayerCut(ends, float(total[-1]), float(max(stage_seconds)))
