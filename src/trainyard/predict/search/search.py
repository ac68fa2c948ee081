"""Finds the fastest layouts of a search space, and the reasons why others are refused."""

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

_LEAVE_OUT = "Leave out a fixed axis, or choose another framework with --for."


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result of a search. `searched`: layouts that divide evenly; `fitting`: those that fit in memory; `refused`:
    the reasons for the fastest that fit but cannot be run. `front`, if requested: the Pareto front of time and memory,
    the fastest first."""

    choices: tuple[LayoutCost, ...]
    searched: int
    fitting: int
    refused: tuple[str, ...]
    tuned: ConstantSet
    front: tuple[LayoutPoint, ...] = ()


class _Ranked(NamedTuple):
    """A search space with its costs. `sizes`: of all layouts; `searched`: the number of layouts without offloading
    variants; `fits`: indices of those that fit; `by_time`: iterates over these in the order of their time."""

    sizes: LayoutSizes
    searched: int
    cases: Cases
    fits: npt.NDArray[np.intp]
    by_time: BestFirstSearch
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
    """Finds the `most` fastest layouts that fit. `refuses` raises `BadJob` for a job that cannot be run. Raises
    `BadJob` if no layout divides the model, or none fits, with the arithmetic and a cluster that is large enough."""
    check_dtype(wanted, framework)
    ranked = _ranked(wanted, machine, framework)
    if not len(ranked.fits):
        raise BadJob(
            infeasible.too_large(wanted, ranked.sizes, ranked.searched, machine),
            infeasible.smallest(wanted, framework, machine),
        )
    refused: list[str] = []
    choices: list[LayoutCost] = []
    accepted = _accepted(wanted, ranked, framework.keeps.between, refuses, refused)
    for timed, job in islice(accepted, most):
        least = min((choice.reserved for choice in choices), default=np.inf)
        choices.append(_choice(ranked, timed, job, budget, int(timed.required) < least))
    if not choices:
        raise BadJob(_all_refused(refused))
    result = SearchResult(
        choices=tuple(choices),
        searched=ranked.searched,
        fitting=len(ranked.fits),
        refused=tuple(refused),
        tuned=ranked.model.tuned,
    )
    return replace(result, front=tuple(_front(ranked, choices, accepted))) if front else result


def check_dtype(wanted: PlannerInput, framework: Framework) -> None:
    """Raises `BadJob` if the framework does not support the compute dtype."""
    if wanted.dtype not in framework.dtypes:
        known = ", ".join(framework.dtypes)
        raise BadJob(
            f"{framework.means} does not compute in {wanted.dtype}.", f"Pass --fix dtype= with one of {known}."
        )


def fastest(
    wanted: PlannerInput, machine: Machine, framework: Framework, budget: float, refuses: Callable[[Job], None]
) -> LayoutCost:
    """The first result of `search`. Raises `BadJob` in the same cases, without suggesting a larger cluster."""
    ranked = _ranked(wanted, machine, framework)
    if not len(ranked.fits):
        raise BadJob(infeasible.too_large(wanted, ranked.sizes, ranked.searched, machine))
    refused: list[str] = []
    for timed, job in _accepted(wanted, ranked, framework.keeps.between, refuses, refused):
        return _choice(ranked, timed, job, budget, front=True)
    raise BadJob(_all_refused(refused))


def _accepted(
    wanted: PlannerInput, ranked: _Ranked, between: bool, refuses: Callable[[Job], None], refused: list[str]
) -> Iterator[tuple[TimedCase, Job]]:
    """The cases that are not refused, in the order of their time. Appends the reasons for the others to `refused`."""
    for timed in ranked.by_time:
        job = layout_space.job_of(wanted, ranked.sizes.layouts.row(timed.index), between)
        try:
            refuses(job)
        except BadJob as error:
            refused.append(f"{job.layout}: {error.says}")
            continue
        yield timed, job


def _all_refused(refused: list[str]) -> str:
    return f"all {len(refused):,} layouts that fit are refused; the fastest: {refused[0]}"


def _ranked(wanted: PlannerInput, machine: Machine, framework: Framework) -> _Ranked:
    if reason := framework.refuses(wanted.model):
        raise BadJob(f"{framework.means}: {reason}", "Name another framework: --for.")
    layouts = framework.layouts(wanted)
    if not len(layouts):
        if not any(len(batch) for batch in layout_space.lots(wanted, framework.offers)):
            raise BadJob(*infeasible.undivided(wanted, framework))
        raise BadJob(f"{framework.means} supports none of the layouts that divide evenly.", _LEAVE_OUT)
    model = machine_model.of(machine, framework.software, wanted.dtype)
    sizes = offload_variants.with_offloading(wanted, layouts, framework, machine)
    cases = layout_space.as_cases(wanted, sizes.layouts, framework.keeps)
    fits = np.flatnonzero(sizes.fits(offload_variants.usable_memory(machine)))
    by_time = BestFirstSearch(cases, fits, _bounds(cases, model, fits), sizes.need, model.hardware, model.values)
    return _Ranked(sizes, min(len(layouts), len(cases)), cases, fits, by_time, model)


def _front(
    ranked: _Ranked, choices: list[LayoutCost], accepted: Iterator[tuple[TimedCase, Job]]
) -> Iterator[LayoutPoint]:
    """The Pareto front of `choices` and of the slower `accepted` cases."""
    yield from (choice.point for choice in choices if choice.front)
    fastest_choice, least_memory = choices[0], min(choice.reserved for choice in choices)
    step_ns = fastest_choice.plan.ledger.wall_ns
    ranked.by_time.only_below(least_memory)
    for timed, job in accepted:
        required, wall_ns = int(timed.required), round(timed.wall_seconds * 1e9)
        low, high = expected_range(wall_ns, ranked.model.tuned, ranked.cases.take(np.array([timed.index])))
        yield points.of_job(job, wall_ns, low, high, required, fastest_choice.bill.slower(wall_ns / step_ns))
        ranked.by_time.only_below(required)


def _bounds(cases: Cases, model: MachineModel, fits: npt.NDArray[np.intp]) -> Column:
    parts = [fits[start : start + layout_space.TOGETHER] for start in range(0, len(fits), layout_space.TOGETHER)]
    bounds = [np.broadcast_to(step.bound(cases.take(part), model.hardware, model.values), len(part)) for part in parts]
    return np.concatenate([np.zeros(0), *bounds])


def _choice(ranked: _Ranked, timed: TimedCase, job: Job, budget: float, front: bool) -> LayoutCost:
    case, waiting = ranked.cases.take(np.array([timed.index])), float(ranked.sizes.waiting[timed.index])
    return cost_case(case, job, ranked.model, timed.times, timed.row, timed.required, waiting, budget, front)
