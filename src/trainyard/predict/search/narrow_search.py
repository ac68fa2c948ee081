"""Search for the fastest layout only: among the few layouts whose floors, lower bounds of their steps that cost little,
are below a limit. It is the fastest of all if its step is not above the limit either."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.predict.inputs import machine_model
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import LayoutSpace, PlannerInput
from trainyard.predict.search import offload_variants, search_space
from trainyard.predict.search.best_first import ROUNDING_TOLERANCE
from trainyard.predict.search.search_space import Runnable, SearchSpace
from trainyard.predict.search.work_floor import step_floors

_FIRST_SHARE = 1 / 8
"""Share of the layouts below the first limit."""
_LARGEST_SHARE = 1 / 2
"""Share of the layouts from which on a search of all of them costs about as much."""
_STEP_OVER_BOUND = 1.05
"""The step of the layout with the least bound is seldom longer than its bound by more than this factor."""


def find_fastest(
    wanted: PlannerInput, layouts: LayoutSpace, machine: Machine, framework: Framework, refuses: Callable[[Job], None]
) -> tuple[SearchSpace, Runnable] | None:
    """The fastest of `layouts`, with a search space of the layouts below a limit; None if all have to be searched.
    Layouts that offload are not searched. `refuses`: raises `BadJob` for a job that cannot be run."""
    if wanted.fixed.get("offload"):
        return None
    model = machine_model.build(machine, framework.software, wanted.dtype)
    floors = step_floors(wanted, layouts, framework, model) * ROUNDING_TOLERANCE
    limit_s = float(np.quantile(floors, _FIRST_SHARE))
    while np.mean(is_below := floors <= limit_s) < _LARGEST_SHARE:
        sizes = offload_variants.size_layouts(wanted, layouts.keep(is_below), framework)
        space = search_space.of_sizes(wanted, framework, model, sizes, only_fastest=True)
        if not len(space.fits):
            return None
        least_bound_s = float(np.min(space.bounds))
        if least_bound_s > limit_s:
            limit_s = least_bound_s * _STEP_OVER_BOUND
            continue
        runnable = next(search_space.runnable_cases(space, space.by_time(), refuses, []), None)
        if runnable is None:
            return None
        if runnable[0].wall_seconds <= limit_s:
            return space, runnable
        limit_s = runnable[0].wall_seconds
    return None
