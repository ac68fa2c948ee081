"""The layouts of a search with their memory and lower bounds, which searches go through in the order of their time.

A layout is a choice of parallelism degrees, micro-batch size, recomputation and schedule; a case is a layout as input
of the cost model, a row of `Cases`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.ledger import Ledger
from trainyard.machine import Machine
from trainyard.predict.economics.training_budget import TrainingBudget
from trainyard.predict.inputs import cluster_size, layout_space, machine_model
from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import LayoutSpace, PlannerInput
from trainyard.predict.inputs.machine_model import MachineModel
from trainyard.predict.inputs.prediction_interval import Interval, intervals_of
from trainyard.predict.search import infeasible, offload_variants, points, remedies
from trainyard.predict.search.best_first import BestFirstSearch, TimedCase
from trainyard.predict.search.layout_cost import LayoutCost, cost_case
from trainyard.predict.search.offload_variants import LayoutSizes
from trainyard.predict.search.points import LayoutPoint
from trainyard.predict.time import predicted_ledger, step

Indices = npt.NDArray[np.intp]
Runnable = tuple[TimedCase, Job]
"""A simulated case, and its job, which the framework does not refuse."""


class SearchSpace(NamedTuple):
    """A search space with its costs. `cases`: a row per layout; `model`: the machine that costs are predicted for;
    `sizes`: of all layouts; `searched`: the number of layouts without offloading variants; `fits`: indices of those
    that fit; `bounds`: lower bounds in seconds of these."""

    wanted: PlannerInput
    framework: Framework
    sizes: LayoutSizes
    searched: int
    cases: Cases
    fits: Indices
    bounds: Column
    model: MachineModel

    def by_time(self, mask: npt.NDArray[np.bool_] | None = None) -> BestFirstSearch:
        """The cases that fit in the order of their time. `mask`: of `fits`; only these."""
        fits, bounds = (self.fits, self.bounds) if mask is None else (self.fits[mask], self.bounds[mask])
        return BestFirstSearch(
            self.cases, fits, bounds, self.sizes.device_bytes, self.model.hardware, self.model.values
        )

    def column(self, axis: str) -> npt.NDArray[np.int64]:
        """The values of an axis in the layouts that fit."""
        return self.sizes.layouts.columns[axis][self.fits]


def of_layouts(
    wanted: PlannerInput, layouts: LayoutSpace, machine: Machine, framework: Framework, *, only_fastest: bool
) -> SearchSpace:
    """The search space of these layouts, and of those that offload if some fit only then. `only_fastest`: as in
    `of_sizes`."""
    sizes = offload_variants.add_offloaded(wanted, layouts, framework, machine)
    model = machine_model.build(machine, framework.software, wanted.dtype)
    space = of_sizes(wanted, framework, model, sizes, only_fastest=only_fastest)
    return space._replace(searched=min(len(layouts), space.searched))


def enumerate_layouts(
    wanted: PlannerInput, machine: Machine, framework: Framework, *, with_remedy: bool = False
) -> LayoutSpace:
    """All layouts of `wanted` that the framework supports, without offloading. Raises `BadJob` if there is none, or
    none can offload although that is fixed (`with_remedy`: with a change of `wanted` that helps), or if the devices
    exceed a node without a link to others."""
    cluster_size.check_ranks(machine, wanted.devices)
    refused = framework.refuses(wanted.model)
    layouts = layout_space.concatenate(()) if refused else framework.layouts(wanted)
    if reason := _explain_missing(wanted, layouts, machine, framework):
        raise BadJob(reason, remedies.suggest(wanted, framework, machine, too_large=False) if with_remedy else "")
    return layouts


def _explain_missing(wanted: PlannerInput, layouts: LayoutSpace, machine: Machine, framework: Framework) -> str:
    """Why none of `layouts` can be searched; empty if some can. `layouts`: those that the framework supports."""
    if reason := framework.refuses(wanted.model):
        return f"{framework.display_name}: {reason}"
    if not len(layouts):
        some_divide = any(len(batch) for batch in layout_space.enumerate_batches(wanted, framework.offers))
        unit = remedies.unit_of_ranks([machine])
        return infeasible.explain_no_layout(wanted, framework, unit, some_divide=some_divide)
    if layout_space.lacks_sharding(wanted, layouts):
        return infeasible.explain_unsharded(wanted, framework)
    if wanted.fixed.get("offload") and machine.host and not framework.offloads(wanted, layouts).any():
        return f"{framework.display_name} does not offload in any of {len(layouts):,} layouts that divide evenly."
    return ""


def of_sizes(
    wanted: PlannerInput, framework: Framework, model: MachineModel, sizes: LayoutSizes, *, only_fastest: bool
) -> SearchSpace:
    """The search space of layouts whose memory is known. `only_fastest`: of those that differ in activation
    checkpointing only, the first that fits, which recomputes least."""
    cases = layout_space.as_cases(wanted, sizes.layouts, framework.keeps)
    fits = np.flatnonzero(sizes.fits(offload_variants.usable_memory(model.machine)))
    if only_fastest:
        fits = fits[layout_space.starts_group(sizes.layouts.keep(fits))]
    return SearchSpace(
        wanted=wanted,
        framework=framework,
        sizes=sizes,
        searched=len(cases),
        cases=cases,
        fits=fits,
        bounds=_lower_bounds(cases, model, fits),
        model=model,
    )


def runnable_cases(
    space: SearchSpace, by_time: Iterable[TimedCase], refuses: Callable[[Job], None], refused: list[str]
) -> Iterator[Runnable]:
    """Yields the cases of `by_time` that are not refused, with their jobs, in its order. Appends the reasons for the
    others to `refused`. `refuses`: raises `BadJob` for a job that cannot be run."""
    for timed in by_time:
        job = layout_space.job_of(space.wanted, space.sizes.layouts.row(timed.index), space.framework.keeps)
        try:
            refuses(job)
        except BadJob as error:
            refused.append(f"{job.layout}: {error.message}")
            continue
        yield timed, job


def explain_refusals(refused: list[str]) -> tuple[str, str]:
    """(message, next step) if trainyard's own runner, which alone is asked, refuses all layouts that fit."""
    next_step = "Change that, or plan for another framework: --for megatron."
    if len(refused) == 1:
        return f"the only layout that fits is refused by trainyard's own runner: {refused[0]}", next_step
    count = f"all {len(refused):,} layouts that fit are refused by trainyard's own runner"
    return f"{count}; the fastest: {refused[0]}", next_step


def are_on_front(runnable: Sequence[Runnable]) -> list[bool]:
    """For each of several layouts, the fastest first, whether it needs less memory than all before."""
    required = [int(timed.required) for timed, _ in runnable]
    return [size < min(required[:at], default=np.inf) for at, size in enumerate(required)]


def cost_choices(
    space: SearchSpace, runnable: Sequence[Runnable], budget: TrainingBudget, on_front: Sequence[bool]
) -> list[LayoutCost]:
    """The costs of simulated layouts. `budget`: for days and dollars; `on_front`: for each, whether all faster layouts
    need more memory."""
    return [
        cost_case(
            space.cases.take(np.array([timed.index])),
            job,
            space.model,
            times=timed.times,
            row=timed.row,
            interval=interval,
            reserved=timed.required,
            host_bytes=float(space.sizes.host_bytes[timed.index]),
            budget=budget,
            front=front,
        )
        for (timed, job), interval, front in zip(runnable, _intervals(space, runnable), on_front, strict=True)
    ]


def ledger_of(space: SearchSpace, runnable: Runnable) -> Ledger:
    """The predicted ledger of a simulated layout."""
    timed, job = runnable
    return predicted_ledger.ledger(timed.times, timed.row, job.layout.ranks, space.model.machine.name)


def points_of(space: SearchSpace, runnable: Sequence[Runnable], known: Sequence[LayoutCost]) -> list[LayoutPoint]:
    """Simulated layouts as points of a chart. `known`: for each any other layout, whose bill is scaled to its step
    time."""
    scaled_points: list[LayoutPoint] = []
    for (timed, job), interval, other in zip(runnable, _intervals(space, runnable), known, strict=True):
        wall_ns = round(timed.wall_seconds * 1e9)
        low, high = interval.bounds(wall_ns)
        bill = other.bill.slower(wall_ns / other.plan.ledger.wall_ns)
        scaled_points.append(points.of_job(job, wall_ns, low, high, int(timed.required), bill))
    return scaled_points


def _intervals(space: SearchSpace, runnable: Sequence[Runnable]) -> list[Interval]:
    """The prediction intervals of simulated layouts."""
    return intervals_of(space.model, space.cases.take(np.array([timed.index for timed, _ in runnable], np.intp)))


def extend_front(
    space: SearchSpace, by_time: BestFirstSearch, runnable: Iterator[Runnable], known: LayoutCost, least_memory: int
) -> list[LayoutPoint]:
    """The rest of the Pareto front of time and memory, the fastest first: the next `runnable` cases that need less
    memory than `least_memory` and all before, to which the search `by_time` is restricted. `known`: as in
    `points_of`."""
    by_time.only_below(least_memory)
    front: list[Runnable] = []
    for each in runnable:
        front.append(each)
        by_time.only_below(int(each[0].required))
    return points_of(space, front, [known] * len(front))


def _lower_bounds(cases: Cases, model: MachineModel, indices: Indices) -> Column:
    """Lower bound in seconds of the step of each case in `indices`, computed in pieces to bound the memory."""
    pieces = [
        indices[start : start + layout_space.CASES_PER_PIECE]
        for start in range(0, len(indices), layout_space.CASES_PER_PIECE)
    ]
    bounds = [
        np.broadcast_to(step.bound(cases.take(piece), model.hardware, model.values), len(piece)) for piece in pieces
    ]
    return np.concatenate([np.zeros(0), *bounds])
