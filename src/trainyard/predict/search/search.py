"""Finds the fastest layouts of a search space, and the reasons why others are refused.

`shortlist` chooses the layouts that `trainyard plan` shows. `budget` has the tokens to train on, from which days and
dollars follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from trainyard.errors import BadJob, UnknownName
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.predict.economics.training_budget import NO_BUDGET, TrainingBudget
from trainyard.predict.inputs.constant_sets import ConstantSet
from trainyard.predict.inputs.framework_support import FRAMEWORKS, Framework
from trainyard.predict.inputs.layout_space import LayoutSpace, PlannerInput
from trainyard.predict.search import infeasible, narrow_search, remedies, search_space, stage_placement
from trainyard.predict.search.layout_cost import LayoutCost
from trainyard.predict.search.points import LayoutPoint
from trainyard.predict.search.search_space import Runnable, SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result of a search. `searched`: layouts that divide evenly; `fitting`: those that fit in memory; `refused`:
    the reasons for the fastest that fit but cannot be run. `front`, if requested: the Pareto front of time and memory,
    the fastest first. `no_baseline`: why a shortlist has no plain data parallelism; empty if it has."""

    choices: tuple[LayoutCost, ...]
    searched: int
    fitting: int
    refused: tuple[str, ...]
    tuned: ConstantSet
    front: tuple[LayoutPoint, ...] = ()
    no_baseline: str = ""

    @property
    def fastest(self) -> LayoutCost:
        """The choice with the least step time."""
        return min(self.choices, key=lambda choice: choice.plan.ledger.wall_ns)


def search(
    wanted: PlannerInput,
    machine: Machine,
    framework: Framework,
    most: int = 10,
    budget: TrainingBudget = NO_BUDGET,
    refuses: Callable[[Job], None] = lambda _: None,
    front: bool = False,
) -> SearchResult:
    """Finds the `most` fastest layouts that fit, the fastest first. `budget`: with tokens, for days and
    dollars. `refuses`: raises `BadJob` for a job that cannot be run. `front`: also find the Pareto front of time and
    memory. Raises `BadJob` if no layout divides the model, or none fits, with the arithmetic and a
    change that helps."""
    space = find_fitting(wanted, machine, framework)
    refused: list[str] = []
    by_time = space.by_time()
    runnable = search_space.runnable_cases(space, by_time, refuses, refused)
    simulated = list(islice(runnable, most))
    choices = search_space.cost_choices(space, simulated, budget, search_space.are_on_front(simulated))
    if not choices:
        raise BadJob(*search_space.explain_refusals(refused))
    points: list[LayoutPoint] = []
    if front:
        points = [choice.point for choice in choices if choice.front]
        points += search_space.extend_front(space, by_time, runnable, choices[0], points[-1].reserved)
    return SearchResult(
        choices=tuple(choices),
        searched=space.searched,
        fitting=len(space.fits),
        refused=tuple(refused),
        tuned=space.model.tuned,
        front=tuple(points),
    )


def find_fitting(wanted: PlannerInput, machine: Machine, framework: Framework) -> SearchSpace:
    """The search space of `wanted`, of which at least one layout fits. Raises `BadJob` as `search` does."""
    check_dtype(wanted, framework, [machine])
    layouts = search_space.enumerate_layouts(wanted, machine, framework, with_remedy=True)
    space = search_space.of_layouts(wanted, layouts, machine, framework, only_fastest=False)
    if not len(space.fits):
        raise BadJob(
            infeasible.explain_too_large(wanted, space.sizes, space.searched, machine),
            remedies.suggest(wanted, framework, machine, too_large=True),
        )
    return space


def check_dtype(wanted: PlannerInput, framework: Framework, machines: Sequence[Machine]) -> None:
    """Raises `BadJob` if the framework does not support the compute dtype, `UnknownName` if a machine has no peak for
    it."""
    dtypes = [dtype for dtype in framework.dtypes if all(dtype in machine.device.peak for machine in machines)]
    step = f"Pass --fix dtype= with one of {', '.join(dtypes)}." if dtypes else ""
    for machine in machines:
        if wanted.dtype not in machine.device.peak:
            raise UnknownName(
                f"{machine.device.name} has no peak for {wanted.dtype}.",
                step or f"Add {wanted.dtype} to [device.peak] of its machine file.",
            )
    step = step or "Choose another framework with --for."
    if wanted.dtype not in framework.dtypes:
        names = [name for name, other in FRAMEWORKS.items() if wanted.dtype in other.dtypes and name != "trainyard"]
        is_restricted = framework.dtypes not in [other.dtypes for other in FRAMEWORKS.values()]  # by a fine-tuning
        if names and not is_restricted:
            step = f"{step.removesuffix('.')}, or plan for another framework: --for {' or '.join(names)}."
        raise BadJob(f"{framework.display_name} does not compute in {wanted.dtype}.", step)


def fastest(
    wanted: PlannerInput, machine: Machine, framework: Framework, budget: TrainingBudget, refuses: Callable[[Job], None]
) -> LayoutCost:
    """The cost of the fastest layout, the first result of `search`. `budget`: as in `search`. Raises `BadJob` in the
    same cases, without a remedy."""
    layouts = search_space.enumerate_layouts(wanted, machine, framework)
    narrow = narrow_search.find_fastest(wanted, layouts, machine, framework, refuses)
    space, runnable = narrow or _find_fastest_of_all(wanted, layouts, machine, framework, refuses)
    choices = search_space.cost_choices(space, [runnable], budget, [True])
    return stage_placement.place_layers(space, choices, budget)[0]


def _find_fastest_of_all(
    wanted: PlannerInput, layouts: LayoutSpace, machine: Machine, framework: Framework, refuses: Callable[[Job], None]
) -> tuple[SearchSpace, Runnable]:
    """The fastest of all layouts, with their search space. Raises `BadJob` as `fastest` does."""
    space = search_space.of_layouts(wanted, layouts, machine, framework, only_fastest=True)
    if not len(space.fits):
        raise BadJob(infeasible.explain_too_large(wanted, space.sizes, space.searched, machine))
    refused: list[str] = []
    for runnable in search_space.runnable_cases(space, space.by_time(), refuses, refused):
        return space, runnable
    raise BadJob(*search_space.explain_refusals(refused))
