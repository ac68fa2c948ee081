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
_STRICTLY_BELOW = 1 - 1e-12
"""Factor that makes a limit exclude the time that it is derived from."""
_UNEVENNESS_PENALTY = 1e-9
"""Relative penalty of a stage that takes as long as the slowest one: a tie-break in favour of the most even
assignment."""


def assign(costs: Costs, micro_batches: int) -> tuple[int, ...] | None:
    """Layers per stage that minimise the time of `micro_batches` micro-batches: the first passes through all stages,
    the others follow at the pace (seconds per micro-batch) of the slowest stage. None if no assignment is feasible.
    `costs`: seconds of a micro-batch, [stage, first layer, layer after its last]; infinite if these layers do not fit
    on the stage.

    Finds the least sum of stage times under a limit on the slowest stage, for ever lower limits. A lower limit cannot
    lower the sum, so the search ends when even the least possible slowest stage would not make it better.
    """
    slowest_s, later_micro_batches = least_slowest_seconds(costs), micro_batches - 1
    costs = costs * (1 + _UNEVENNESS_PENALTY * costs / slowest_s) if 0 < slowest_s < np.inf else costs
    slowest_s = least_slowest_seconds(costs)
    best = _find_least_sum(costs, slowest_s)
    if best is None:
        return None
    least_time_s = later_micro_batches * slowest_s + best.total
    limit_s, candidate = np.inf, _find_least_sum(costs)
    while candidate is not None and later_micro_batches * slowest_s + candidate.total < least_time_s:
        if later_micro_batches * candidate.slowest + candidate.total < least_time_s:
            best, least_time_s = candidate, later_micro_batches * candidate.slowest + candidate.total
        # Only a slowest stage below both the candidate's and the pace that `least_time_s` allows can be an improvement.
        limit_s = min(
            candidate.slowest * _STRICTLY_BELOW, (least_time_s - candidate.total) / max(later_micro_batches, 1)
        )
        candidate = _find_least_sum(costs, limit_s)
    return tuple(np.diff(best.ends, prepend=0).tolist())


def least_slowest_seconds(costs: Costs) -> float:
    """The least possible time of the slowest stage over all assignments, in seconds; infinite if none is feasible."""
    slowest_so_far = np.full(costs.shape[1], np.inf)  # [end]: with layers 0 to `end` on the stages so far
    slowest_so_far[0] = 0.0
    for stage_costs in costs:
        slowest_so_far = np.min(np.maximum(slowest_so_far[:, None], stage_costs), axis=0)
    return float(slowest_so_far[-1])


class _Assignment(NamedTuple):
    """An assignment of layers to stages. `ends`: number of layers up to the end of each stage; `total`, `slowest`:
    seconds of all stages together, and of the slowest one."""

    ends: list[int]
    total: float
    slowest: float


def _find_least_sum(costs: Costs, limit_s: float = np.inf) -> _Assignment | None:
    """The assignment with the least sum of stage times and no stage above `limit_s` seconds; None if there is none."""
    costs = np.where(costs <= limit_s, costs, np.inf)
    least_total = np.full(costs.shape[1], np.inf)  # [end]: with layers 0 to `end` on the stages so far
    least_total[0] = 0.0
    predecessors: list[npt.NDArray[np.intp]] = []  # of each stage, [end]: its first layer in the best assignment
    for stage_costs in costs:
        candidates = least_total[:, None] + stage_costs
        predecessors.append(np.argmin(candidates, axis=0))
        least_total = np.min(candidates, axis=0)
    if least_total[-1] == np.inf:
        return None
    ends = [costs.shape[1] - 1]
    for predecessor in reversed(predecessors[1:]):
        ends.append(int(predecessor[ends[-1]]))
    ends.reverse()
    stage_seconds = [stage_costs[first, end] for stage_costs, first, end in zip(costs, [0, *ends], ends)]
    return _Assignment(ends, float(least_total[-1]), float(max(stage_seconds)))
