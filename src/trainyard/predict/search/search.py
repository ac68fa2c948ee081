"""Finds the fastest layouts of a search space, and the reasons why others are refused.

A layout is a choice of parallelism degrees, micro-batch size, recomputation and schedule; a case is a layout as input
of the cost model, a row of `Cases`. `budget` has the tokens to train on, from which days and dollars follow.
"""

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
from trainyard.predict.economics.training_budget import NO_BUDGET, TrainingBudget
from trainyard.predict.inputs import layout_space, machine_model
from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constant_sets import ConstantSet
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import Keeps, PlannerInput
from trainyard.predict.inputs.machine_model import MachineModel
from trainyard.predict.search import infeasible, offload_variants, points
from trainyard.predict.search.best_first import BestFirstSearch, TimedCase
from trainyard.predict.search.layout_cost import LayoutCost, cost_case, expected_range
from trainyard.predict.search.offload_variants import LayoutSizes
from trainyard.predict.search.points import LayoutPoint
from trainyard.predict.time import step


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


class _SearchSpace(NamedTuple):
    """A search space with its costs. `cases`: a row per layout; `model`: the machine that costs are predicted for;
    `sizes`: of all layouts; `searched`: the number of layouts without offloading
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
    budget: TrainingBudget = NO_BUDGET,
    refuses: Callable[[Job], None] = lambda _: None,
    front: bool = False,
) -> SearchResult:
    """Finds the `most` fastest layouts that fit. `budget`: with tokens, for days and dollars.
    `refuses`: raises `BadJob` for a job that cannot be run. `front`: also find the Pareto front of time and memory.
    Raises `BadJob` if no layout divides the model, or none fits, with the arithmetic and a cluster that is large
    enough."""
    check_dtype(wanted, framework)
    space = _build_search_space(wanted, machine, framework)
    if not len(space.fits):
        raise BadJob(
            infeasible.explain_too_large(wanted, space.sizes, space.searched, machine),
            infeasible.suggest_device_count(wanted, framework, machine),
        )
    refused: list[str] = []
    choices: list[LayoutCost] = []
    runnable = _runnable_cases(wanted, space, framework.keeps, refuses, refused)
    for timed, job in islice(runnable, most):  # the fastest first: on the front if it needs less memory than all before
        least_reserved = min((choice.reserved for choice in choices), default=np.inf)
        choices.append(_cost_choice(space, timed, job, budget, int(timed.required) < least_reserved))
    if not choices:
        raise BadJob(_explain_refusals(refused))
    result = SearchResult(
        choices=tuple(choices),
        searched=space.searched,
        fitting=len(space.fits),
        refused=tuple(refused),
        tuned=space.model.tuned,
    )
    return replace(result, front=tuple(_extend_front(space, choices, runnable))) if front else result


def check_dtype(wanted: PlannerInput, framework: Framework) -> None:
    """Raises `BadJob` if the framework does not support the compute dtype."""
    if wanted.dtype not in framework.dtypes:
        dtypes = ", ".join(framework.dtypes)
        raise BadJob(
            f"{framework.display_name} does not compute in {wanted.dtype}.", f"Pass --fix dtype= with one of {dtypes}."
        )


def fastest(
    wanted: PlannerInput, machine: Machine, framework: Framework, budget: TrainingBudget, refuses: Callable[[Job], None]
) -> LayoutCost:
    """The cost of the fastest layout, the first result of `search`. `budget`: as in `search`. Raises `BadJob` in the
    same cases, without suggesting a larger cluster."""
    space = _build_search_space(wanted, machine, framework)
    if not len(space.fits):
        raise BadJob(infeasible.explain_too_large(wanted, space.sizes, space.searched, machine))
    refused: list[str] = []
    for timed, job in _runnable_cases(wanted, space, framework.keeps, refuses, refused):
        return _cost_choice(space, timed, job, budget, front=True)
    raise BadJob(_explain_refusals(refused))


def _runnable_cases(
    wanted: PlannerInput,
    space: _SearchSpace,
    keeps: Keeps,
    refuses: Callable[[Job], None],
    refused: list[str],
) -> Iterator[tuple[TimedCase, Job]]:
    """Yields the cases that are not refused, with their jobs, in the order of their time, by advancing `space.by_time`.
    Appends the reasons for the others to `refused`. `refuses`: raises `BadJob` for a job that cannot be run.
    `keeps`: how the framework keeps tensors."""
    for timed in space.by_time:
        job = layout_space.job_of(wanted, space.sizes.layouts.row(timed.index), keeps)
        try:
            refuses(job)
        except BadJob as error:
            refused.append(f"{job.layout}: {error.message}")
            continue
        yield timed, job


def _explain_refusals(refused: list[str]) -> str:
    return f"all {len(refused):,} layouts that fit are refused; the fastest: {refused[0]}"


def _build_search_space(wanted: PlannerInput, machine: Machine, framework: Framework) -> _SearchSpace:
    """All layouts of `wanted` with their memory and lower bounds, ready to be searched. Raises `BadJob` if there is
    none."""
    if reason := framework.refuses(wanted.model):
        raise BadJob(f"{framework.display_name}: {reason}", "Name another framework: --for.")
    layouts = framework.layouts(wanted)
    if not len(layouts):
        if not any(len(batch) for batch in layout_space.enumerate_batches(wanted, framework.offers)):
            raise BadJob(*infeasible.explain_indivisible(wanted, framework, infeasible.unit_of_ranks([machine])))
        raise BadJob(*infeasible.explain_unsupported(wanted, framework))
    model = machine_model.build(machine, framework.software, wanted.dtype)
    sizes = offload_variants.add_offloaded(wanted, layouts, framework, machine)
    cases = layout_space.as_cases(wanted, sizes.layouts, framework.keeps)
    fits = np.flatnonzero(sizes.fits(offload_variants.usable_memory(machine)))
    by_time = BestFirstSearch(
        cases, fits, _lower_bounds(cases, model, fits), sizes.device_bytes, model.hardware, model.values
    )
    return _SearchSpace(
        sizes=sizes, searched=min(len(layouts), len(cases)), cases=cases, fits=fits, by_time=by_time, model=model
    )


def _extend_front(
    space: _SearchSpace, choices: list[LayoutCost], runnable: Iterator[tuple[TimedCase, Job]]
) -> Iterator[LayoutPoint]:
    """Yields the Pareto front of time and memory, the fastest first: the `choices` on it, then the slower `runnable`
    cases with less memory, for which the search is restricted to ever less memory."""
    yield from (choice.point for choice in choices if choice.front)
    fastest_choice, least_memory = choices[0], min(choice.reserved for choice in choices)
    step_ns = fastest_choice.plan.ledger.wall_ns
    space.by_time.only_below(least_memory)
    for timed, job in runnable:
        reserved_bytes, wall_ns = int(timed.required), round(timed.wall_seconds * 1e9)
        low, high = expected_range(wall_ns, space.model.tuned, space.cases.take(np.array([timed.index])))
        yield points.of_job(job, wall_ns, low, high, reserved_bytes, fastest_choice.bill.slower(wall_ns / step_ns))
        space.by_time.only_below(reserved_bytes)


def _lower_bounds(cases: Cases, model: MachineModel, indices: npt.NDArray[np.intp]) -> Column:
    """Lower bound in seconds of the step of each case in `indices`, computed in pieces to bound the memory."""
    pieces = [
        indices[start : start + layout_space.CASES_PER_PIECE]
        for start in range(0, len(indices), layout_space.CASES_PER_PIECE)
    ]
    bounds = [
        np.broadcast_to(step.bound(cases.take(piece), model.hardware, model.values), len(piece)) for piece in pieces
    ]
    return np.concatenate([np.zeros(0), *bounds])


def _cost_choice(space: _SearchSpace, timed: TimedCase, job: Job, budget: TrainingBudget, front: bool) -> LayoutCost:
    """The cost of a simulated layout. `budget`: for days and dollars; `front`: whether all faster layouts need more
    memory."""
    case, host_bytes = space.cases.take(np.array([timed.index])), float(space.sizes.host_bytes[timed.index])
    return cost_case(
        case,
        job,
        space.model,
        times=timed.times,
        row=timed.row,
        reserved=timed.required,
        host_bytes=host_bytes,
        budget=budget,
        front=front,
    )
