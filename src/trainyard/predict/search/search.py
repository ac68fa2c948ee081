"""The best layouts of a whole space, and why others are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.predict.inputs import layout_space, machine_model
from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constant_sets import ConstantSet
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.inputs.machine_model import MachineModel
from trainyard.predict.search import infeasible, offload_variants, points
from trainyard.predict.search.best_first import BestFirstSearch, TimedCase
from trainyard.predict.search.layout_cost import LayoutCost, cost_case, expected_range
from trainyard.predict.search.offload_variants import LayoutSizes
from trainyard.predict.search.points import LayoutPoint
from trainyard.predict.time import step

_GIVEN = "Leave out what is fixed, or name another framework."


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """`searched`: layouts that divide everything; `fitting`: that fit in memory; `refused`: why of the fastest that fit
    but no runner takes. `front`, where it was asked for: of all that fit and are taken those that nothing as fast or
    faster needs less memory than, the fastest first."""

    choices: tuple[LayoutCost, ...]
    searched: int
    fitting: int
    refused: tuple[str, ...]
    tuned: ConstantSet
    front: tuple[LayoutPoint, ...] = ()


class _Ranked(NamedTuple):
    """A space, costed: `sizes` of all that were tried, `searched` of them without what waits in the host's memory
    where both were; `fits` has the places of those that fit, and `soonest` them in the order of their time."""

    sizes: LayoutSizes
    searched: int
    made: Cases
    fits: npt.NDArray[np.intp]
    soonest: BestFirstSearch
    model: MachineModel


def search(
    wanted: PlannerInput,
    machine: Machine,
    framework: Framework,
    most: int = 10,
    budget: float = 0.0,
    refuses: Callable[[Job], None] = lambda _: None,
    front: bool = False,
) -> SearchResult:
    """The `most` fastest that fit. `refuses` raises `BadJob` for a job that cannot be run. Raises `BadJob` where no
    layout divides the model, or none fits, with the arithmetic and the smallest cluster that would do."""
    check_dtype(wanted, framework)
    ranked = _ranked(wanted, machine, framework)
    if not len(ranked.fits):
        raise BadJob(
            infeasible.too_large(wanted, ranked.sizes, ranked.searched, machine),
            infeasible.smallest(wanted, framework, machine),
        )
    refused: list[str] = []
    choices: list[LayoutCost] = []
    taken = _taken(wanted, ranked, framework.keeps.between, refuses, refused)
    for timed, job in islice(taken, most):
        least = min((one.reserved for one in choices), default=np.inf)
        choices.append(_choice(ranked, timed, job, budget, int(timed.need) < least))
    if not choices:
        raise BadJob(_all_refused(refused))
    found = SearchResult(
        choices=tuple(choices),
        searched=ranked.searched,
        fitting=len(ranked.fits),
        refused=tuple(refused),
        tuned=ranked.model.tuned,
    )
    return replace(found, front=tuple(_front(ranked, choices, taken))) if front else found


def check_dtype(wanted: PlannerInput, framework: Framework) -> None:
    """Raises `BadJob` for what the framework does not compute in."""
    if wanted.dtype not in framework.dtypes:
        known = ", ".join(framework.dtypes)
        raise BadJob(f"{framework.means} does not compute in {wanted.dtype}.", f"Say --fix dtype=, one of {known}.")


def fastest(
    wanted: PlannerInput, machine: Machine, framework: Framework, budget: float, refuses: Callable[[Job], None]
) -> LayoutCost:
    """The first of what `search` finds. Raises `BadJob` where that does, without looking for a way out."""
    ranked = _ranked(wanted, machine, framework)
    if not len(ranked.fits):
        raise BadJob(infeasible.too_large(wanted, ranked.sizes, ranked.searched, machine))
    refused: list[str] = []
    for timed, job in _taken(wanted, ranked, framework.keeps.between, refuses, refused):
        return _choice(ranked, timed, job, budget, front=True)
    raise BadJob(_all_refused(refused))


def _taken(
    wanted: PlannerInput, ranked: _Ranked, between: bool, refuses: Callable[[Job], None], refused: list[str]
) -> Iterator[tuple[TimedCase, Job]]:
    """The soonest that are not refused; why the others are is put with `refused`."""
    for timed in ranked.soonest:
        job = layout_space.job_of(wanted, ranked.sizes.every.row(timed.place), between)
        try:
            refuses(job)
        except BadJob as error:
            refused.append(f"{job.layout}: {error.says}")
            continue
        yield timed, job


def _all_refused(refused: list[str]) -> str:
    return f"all {len(refused):,} layouts that fit are refused; the fastest: {refused[0]}"


def _ranked(wanted: PlannerInput, machine: Machine, framework: Framework) -> _Ranked:
    if says := framework.refuses(wanted.model):
        raise BadJob(f"{framework.means}: {says}", "Name another framework: --for.")
    every = framework.layouts(wanted)
    if not len(every):
        if not any(len(lot) for lot in layout_space.lots(wanted, framework.offers)):
            raise BadJob(*infeasible.undivided(wanted, framework))
        raise BadJob(f"{framework.means} takes none of the layouts that divide everything.", _GIVEN)
    model = machine_model.of(machine, framework.software, wanted.dtype)
    sizes = offload_variants.both(wanted, every, framework, machine)
    made = layout_space.as_cases(wanted, sizes.every, framework.keeps)
    fits = np.flatnonzero(sizes.fits(offload_variants.room(machine)))
    soonest = BestFirstSearch(made, fits, _bounds(made, model, fits), sizes.need, model.hardware, model.values)
    return _Ranked(sizes, min(len(every), len(made)), made, fits, soonest, model)


def _front(ranked: _Ranked, choices: list[LayoutCost], taken: Iterator[tuple[TimedCase, Job]]) -> Iterator[LayoutPoint]:
    """Of `choices`, and of what is `taken` behind them."""
    yield from (one.point for one in choices if one.front)
    best, least = choices[0], min(one.reserved for one in choices)
    step_ns = best.plan.ledger.wall_ns
    ranked.soonest.only_below(least)
    for timed, job in taken:
        need, wall = int(timed.need), round(timed.wall * 1e9)
        low, high = expected_range(wall, ranked.model.tuned, ranked.made.take(np.array([timed.place])))
        yield points.of_job(job, wall, low, high, need, best.bill.slower(wall / step_ns))
        ranked.soonest.only_below(need)


def _bounds(cases: Cases, model: MachineModel, fits: npt.NDArray[np.intp]) -> Column:
    parts = [fits[start : start + layout_space.TOGETHER] for start in range(0, len(fits), layout_space.TOGETHER)]
    bounds = [np.broadcast_to(step.bound(cases.take(part), model.hardware, model.values), len(part)) for part in parts]
    return np.concatenate([np.zeros(0), *bounds])


def _choice(ranked: _Ranked, timed: TimedCase, job: Job, budget: float, front: bool) -> LayoutCost:
    case, waiting = ranked.made.take(np.array([timed.place])), float(ranked.sizes.waiting[timed.place])
    return cost_case(case, job, ranked.model, timed.found, timed.at, timed.need, waiting, budget, front)
