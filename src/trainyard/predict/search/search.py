"""The best layouts of a whole space, and why others are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard import words
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.plan import Plan
from trainyard.predict.economics import step_cost
from trainyard.predict.economics.step_cost import Bill
from trainyard.predict.inputs import cases, hardware, layout_space
from trainyard.predict.inputs import constant_sets as tuned
from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constant_sets import ASSUMED, Tuned
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.hardware import Site
from trainyard.predict.inputs.layout_space import Space, Wanted
from trainyard.predict.memory import framework_memory
from trainyard.predict.pipeline import partition
from trainyard.predict.search import infeasible, offload_variants, points
from trainyard.predict.search.best_first import Soonest, TimedCase
from trainyard.predict.search.offload_variants import Sized
from trainyard.predict.search.points import LayoutPoint
from trainyard.predict.time import offload, predicted_ledger, step
from trainyard.predict.time.step import StepTime

_GIVEN = "Leave out what is fixed, or name another framework."


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A layout with what it costs. `front`: what is as fast or faster needs more memory. `waiting`: bytes of a rank in
    its host's memory."""

    plan: Plan
    bill: Bill
    reserved: int
    waiting: int
    front: bool

    @property
    def point(self) -> LayoutPoint:
        plan = self.plan
        return points.of_job(plan.job, plan.ledger.wall_ns, plan.low, plan.high, self.reserved, self.bill)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`searched`: layouts that divide everything; `fitting`: that fit in memory; `refused`: why of the fastest that fit
    but no runner takes. `front`, where it was asked for: of all that fit and are taken those that nothing as fast or
    faster needs less memory than, the fastest first."""

    choices: tuple[Choice, ...]
    searched: int
    fitting: int
    refused: tuple[str, ...]
    tuned: Tuned
    front: tuple[LayoutPoint, ...] = ()


class _Ranked(NamedTuple):
    """A space, costed: `sizes` of all that were tried, `searched` of them without what waits in the host's memory
    where both were; `fits` has the places of those that fit, and `soonest` them in the order of their time."""

    sizes: Sized
    searched: int
    made: Cases
    fits: npt.NDArray[np.intp]
    soonest: Soonest
    where: Site
    known: Tuned


def search(
    wanted: Wanted,
    machine: Machine,
    framework: Framework,
    most: int = 10,
    budget: float = 0.0,
    refuses: Callable[[Job], None] = lambda _: None,
    front: bool = False,
) -> Found:
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
    choices: list[Choice] = []
    taken = _taken(wanted, ranked, framework.keeps.between, refuses, refused)
    for timed, job in islice(taken, most):
        least = min((one.reserved for one in choices), default=np.inf)
        choices.append(_choice(ranked, timed, job, machine, budget, int(timed.need) < least))
    if not choices:
        raise BadJob(_all_refused(refused))
    found = Found(
        choices=tuple(choices), searched=ranked.searched, fitting=len(ranked.fits), refused=tuple(refused),
        tuned=ranked.known,
    )  # fmt: skip
    return replace(found, front=tuple(_front(ranked, choices, taken))) if front else found


def check_dtype(wanted: Wanted, framework: Framework) -> None:
    """Raises `BadJob` for what the framework does not compute in."""
    if wanted.dtype not in framework.dtypes:
        known = ", ".join(framework.dtypes)
        raise BadJob(f"{framework.means} does not compute in {wanted.dtype}.", f"Say --fix dtype=, one of {known}.")


def fastest(
    wanted: Wanted, machine: Machine, framework: Framework, budget: float, refuses: Callable[[Job], None]
) -> Choice:
    """The first of what `search` finds. Raises `BadJob` where that does, without looking for a way out."""
    ranked = _ranked(wanted, machine, framework)
    if not len(ranked.fits):
        raise BadJob(infeasible.too_large(wanted, ranked.sizes, ranked.searched, machine))
    refused: list[str] = []
    for timed, job in _taken(wanted, ranked, framework.keeps.between, refuses, refused):
        return _choice(ranked, timed, job, machine, budget, front=True)
    raise BadJob(_all_refused(refused))


def _taken(
    wanted: Wanted, ranked: _Ranked, between: bool, refuses: Callable[[Job], None], refused: list[str]
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


def _ranked(wanted: Wanted, machine: Machine, framework: Framework) -> _Ranked:
    if says := framework.refuses(wanted.model):
        raise BadJob(f"{framework.means}: {says}", "Name another framework: --for.")
    every = framework.layouts(wanted)
    if not len(every):
        if not any(len(lot) for lot in layout_space.lots(wanted, framework.offers)):
            raise BadJob(*infeasible.undivided(wanted, framework))
        raise BadJob(f"{framework.means} takes none of the layouts that divide everything.", _GIVEN)
    known = tuned.choose(machine, framework.software)
    where = _site(machine, wanted.dtype)
    sizes = offload_variants.both(wanted, every, framework, machine)
    made = layout_space.as_cases(wanted, sizes.every, framework.keeps)
    fits = np.flatnonzero(sizes.fits(offload_variants.room(machine)))
    values = known.values()
    soonest = Soonest(made, fits, _bounds(made, where, values, fits), sizes.need, where, values)
    return _Ranked(sizes, min(len(every), len(made)), made, fits, soonest, where, known)


def _front(ranked: _Ranked, choices: list[Choice], taken: Iterator[tuple[TimedCase, Job]]) -> Iterator[LayoutPoint]:
    """Of `choices`, and of what is `taken` behind them."""
    yield from (one.point for one in choices if one.front)
    best, least = choices[0], min(one.reserved for one in choices)
    step_ns = best.plan.ledger.wall_ns
    ranked.soonest.only_below(least)
    for timed, job in taken:
        need, wall = int(timed.need), round(timed.wall * 1e9)
        low, high = _around(wall, ranked.known, ranked.made.take(np.array([timed.place])))
        yield points.of_job(job, wall, low, high, need, best.bill.slower(wall / step_ns))
        ranked.soonest.only_below(need)


def check(job: Job, machine: Machine, framework: Framework, budget: float = 0.0) -> Choice:
    """A job as it is, whether it fits or not. Raises `BadJob` where something waits in a host's memory and nobody says
    what hosts the machine has."""
    if job.recipe.offload:
        offload_variants.check(machine)
    keeps = framework.keeps.of(job.recipe.dtype)
    ends = partition.counted(keeps.ends, cases.subject(job).layers, job.layout.pp * job.layout.interleave)
    kept = {"weight_bytes": keeps.weight, "gradient_bytes": keeps.gradient, "state_bytes": keeps.state,
            "reduce_bytes": keeps.gradient, "remade": keeps.remade, "own": keeps.own, "ends": ends,
            "offload": job.recipe.offload * offload.KINDS.index(keeps.offload)}  # fmt: skip
    made = replace(cases.of_jobs([job]), **{name: cases.column(value) for name, value in kept.items()})
    where = _site(machine, job.recipe.dtype)
    sizes = Sized(
        Space({}),
        np.atleast_1d(framework_memory.memory(made).total * framework_memory.RESERVED),
        framework_memory.on_host(made),
    )
    known, place = tuned.choose(machine, framework.software), np.zeros(1, np.intp)
    soonest = Soonest(made, place, np.zeros(1), sizes.need, where, known.values())
    ranked = _Ranked(sizes, 1, made, place, soonest, where, known)
    return _choice(ranked, next(iter(soonest)), job, machine, budget, front=False)


def _site(machine: Machine, dtype: str) -> Site:
    low = "" if words.DTYPES[dtype] >= 2 else dtype
    return hardware.of_machine(machine, "bfloat16" if low else dtype, low)


def _bounds(made: Cases, where: Site, values: Constants, fits: npt.NDArray[np.intp]) -> Column:
    parts = [fits[start : start + layout_space.TOGETHER] for start in range(0, len(fits), layout_space.TOGETHER)]
    found = [np.broadcast_to(step.bound(made.take(part), where, values), len(part)) for part in parts]
    return np.concatenate([np.zeros(0), *found])


def _choice(ranked: _Ranked, timed: TimedCase, job: Job, machine: Machine, budget: float, front: bool) -> Choice:
    one = ranked.made.take(np.array([timed.place]))
    plan = _plan(timed.found, timed.at, one, job, ranked.known, machine.name)
    tokens = float(job.recipe.tokens_per_step)
    flops, peak = float(step_cost.model_flops(one)[0]), float(ranked.where.peak[0]) * job.layout.ranks
    spent = step_cost.bill([(machine, job.layout.ranks)], plan.ledger.wall_ns / 1e9, tokens, flops, peak, budget)
    waiting = int(ranked.sizes.waiting[timed.place])
    return Choice(plan=plan, bill=spent, reserved=int(timed.need), waiting=waiting, front=front)


def planned(one: Cases, job: Job, where: Site, known: Tuned, source: str) -> Plan:
    """The plan of a single case."""
    return _plan(step.step(one, where, known.values()), 0, one, job, known, source)


def _plan(found: StepTime, at: int, one: Cases, job: Job, known: Tuned, source: str) -> Plan:
    ledger = predicted_ledger.ledger(found, at, job.layout.ranks, source)
    low, high = _around(ledger.wall_ns, known, one)
    parts = framework_memory.memory(one).parts()
    return Plan(
        job=job,
        ledger=ledger,
        low=low,
        high=high,
        memory={part: int(np.ravel(size)[0]) for part, size in parts.items()},
        assumptions=known.claims,
    )


def _around(wall_ns: int, known: Tuned, one: Cases) -> tuple[int, int]:
    """Between which four of five measured steps are expected. None was measured with anything in a host's memory."""
    low, high = ASSUMED if float(one.offload[0]) else known.interval(_kind(one))
    return min(wall_ns, round(wall_ns * low)), max(wall_ns, round(wall_ns * high))


def _kind(one: Cases) -> str:
    """Of model, as intervals are told by."""
    if float(one.spaces[0]):
        return "hybrid"
    return "pictures" if float(one.lead[0]) else "experts" if float(one.experts[0]) else "dense"
