"""The best layouts of a whole space, and why others are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trainyard import words
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.plan import Plan
from trainyard.predict import books, cases, memory, money, site, space, step, tuned
from trainyard.predict.cases import Cases, Column
from trainyard.predict.frameworks import Framework
from trainyard.predict.memory import RESERVED
from trainyard.predict.money import Bill
from trainyard.predict.site import Site
from trainyard.predict.space import Space, Wanted
from trainyard.predict.tuned import Tuned
from trainyard.units import show_size

USABLE = 0.94
"""Of a device's memory: the rest is the driver's, the framework's and the collectives' own."""
_GIVEN = "Leave out what is fixed, or name another framework."
_TOGETHER = 1 << 15
"""Cases that are costed at once, so that they stay in a processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A layout with what it costs. `front`: nothing is at least as good in time and in memory, and better in one."""

    plan: Plan
    bill: Bill
    reserved: int
    front: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`searched`: layouts that divide everything; `fitting`: that fit in memory; `refused`: why of the fastest that fit
    but no runner takes."""

    choices: tuple[Choice, ...]
    searched: int
    fitting: int
    refused: tuple[str, ...]
    tuned: Tuned


def search(
    wanted: Wanted,
    machine: Machine,
    framework: Framework,
    most: int = 10,
    budget: float = 0.0,
    refuses: Callable[[Job], None] = lambda _: None,
) -> Found:
    """The `most` fastest that fit. `refuses` raises `BadJob` for a job that cannot be run. Raises `BadJob` where no
    layout divides the model, or none fits, with the arithmetic and the smallest cluster that would do."""
    every = space.space(wanted)
    if not len(every):
        raise BadJob(*_undivided(wanted))
    every = every.keep(framework.allows(wanted, every))
    if not len(every):
        raise BadJob(f"{framework.means} takes none of the layouts that divide everything.", _GIVEN)
    known = tuned.choose(machine, framework.software)
    where = _site(machine, wanted.dtype)
    made = space.as_cases(wanted, every, framework.keeps)
    need = memory.memory(made).total * RESERVED
    fits = np.flatnonzero(np.broadcast_to(need <= where.memory * USABLE, len(every)))
    if not len(fits):
        raise BadJob(*_too_large(wanted, framework, every, need, float(where.memory[0])))
    walls = _walls(made, where, known, fits)
    order = fits[np.argsort(walls, kind="stable")]
    front = set(_front(np.sort(walls, kind="stable"), need[order], order))
    choices: list[Choice] = []
    refused: list[str] = []
    for place in order:
        if len(choices) == most:
            break
        job = space.job_of(wanted, every.row(int(place)))
        try:
            refuses(job)
        except BadJob as error:
            refused.append(f"{job.layout}: {error.says}")
            continue
        choices.append(_choice(made, int(place), job, machine, where, known, need, budget, int(place) in front))
    if not choices:
        raise BadJob(f"all {len(fits):,} layouts that fit are refused; the fastest: {refused[0]}")
    return Found(choices=tuple(choices), searched=len(every), fitting=len(fits), refused=tuple(refused), tuned=known)


def check(job: Job, machine: Machine, framework: Framework, budget: float = 0.0) -> Choice:
    """A job as it is, whether it fits or not."""
    keeps = framework.keeps
    kept = {"weight_bytes": keeps.weight, "gradient_bytes": keeps.gradient, "state_bytes": keeps.state,
            "reduce_bytes": keeps.gradient, "own": keeps.own}  # fmt: skip
    made = replace(cases.of_jobs([job]), **{name: cases.column(value) for name, value in kept.items()})
    where = _site(machine, job.recipe.dtype)
    need = np.atleast_1d(memory.memory(made).total * RESERVED)
    return _choice(made, 0, job, machine, where, tuned.choose(machine, framework.software), need, budget, front=False)


def _site(machine: Machine, dtype: str) -> Site:
    low = "" if words.DTYPES[dtype] >= 2 else dtype
    return site.of_machine(machine, "bfloat16" if low else dtype, low)


def _walls(made: Cases, where: Site, known: Tuned, fits: npt.NDArray[np.intp]) -> Column:
    values = known.values()
    parts = [fits[start : start + _TOGETHER] for start in range(0, len(fits), _TOGETHER)]
    return np.concatenate(
        [np.broadcast_to(step.step(made.take(part), where, values).wall, len(part)) for part in parts]
    )


def _front(walls: Column, need: Column, order: npt.NDArray[np.intp]) -> list[int]:
    """Of cases in the order of their time those that need less memory than all faster ones."""
    least = np.minimum.accumulate(np.concatenate([[np.inf], need]))[:-1]
    return [int(place) for place in order[need < least]]


def _choice(
    made: Cases, place: int, job: Job, machine: Machine, where: Site, known: Tuned, need: Column, budget: float,
    front: bool,
) -> Choice:  # fmt: skip
    one = made.take(np.array([place]))
    plan = planned(one, job, where, known, machine.name)
    tokens = float(job.recipe.tokens_per_step)
    spent = money.bill(
        machine, plan.ledger.wall_ns / 1e9, tokens, float(money.model_flops(one)[0]), float(where.peak[0]),
        job.layout.ranks, budget,
    )  # fmt: skip
    return Choice(plan=plan, bill=spent, reserved=int(need[place]), front=front)


def planned(one: Cases, job: Job, where: Site, known: Tuned, source: str) -> Plan:
    """The plan of a single case."""
    predicted = step.step(one, where, known.values())
    ledger = books.ledger(predicted, 0, job.layout.ranks, source)
    low, high = known.interval("experts" if float(one.experts[0]) else "dense")
    parts = memory.memory(one).parts()
    return Plan(
        job=job,
        ledger=ledger,
        low=min(ledger.wall_ns, round(ledger.wall_ns * low)),
        high=max(ledger.wall_ns, round(ledger.wall_ns * high)),
        memory={part: int(np.ravel(size)[0]) for part, size in parts.items()},
        assumptions=known.claims,
    )


def _undivided(wanted: Wanted) -> tuple[str, str]:
    given = ", ".join(f"{axis} = {value}" for axis, value in wanted.fixed.items())
    model = wanted.model
    says = (
        f"no layout of {wanted.devices:,} devices divides {model.heads} heads ({model.kv_heads} of keys and values), "
        f"{model.layers} layers and {wanted.samples:,} samples a step"
    )
    said = says + (f" with {given}." if given else ".")
    for axis, value in wanted.fixed.items():
        if axis == "tp" and (model.heads % value or model.kv_heads % value):
            of = model.heads if model.heads % value else model.kv_heads
            return said, f"{of} heads % tp {value} = {of % value}."
        if axis == "pp" and wanted.devices % value:
            return said, f"{wanted.devices:,} devices % pp {value} = {wanted.devices % value}."
        if axis == "pp" and value > model.layers:
            return said, f"pp {value} is more than {model.layers} layers."
    return said, "Change the batch or the number of devices: both are best multiples of the same powers of two."


def _too_large(
    wanted: Wanted, framework: Framework, every: Space, need: Column, memory_bytes: float
) -> tuple[str, str]:
    best = int(np.argmin(need))
    job = space.job_of(wanted, every.row(best))
    least, usable = float(need[best]), memory_bytes * USABLE
    says = (
        f"{wanted.model.name} fits on {wanted.devices:,} devices in none of {len(every):,} layouts: the smallest "
        f"({job.layout}, remat {job.recipe.remat}) needs {show_size(least)} of each, and {show_size(usable)} of "
        f"{show_size(memory_bytes)} can be used: {show_size(least - usable)} too much."
    )
    for times in (2, 4, 8, 16, 32, 64):
        more = wanted._replace(devices=wanted.devices * times)
        bigger = space.space(more)
        bigger = bigger.keep(framework.allows(more, bigger))
        if (
            len(bigger)
            and (memory.memory(space.as_cases(more, bigger, framework.keeps)).total * RESERVED <= usable).any()
        ):
            return says, f"{more.devices:,} devices would do."
    return says, "Use devices of more memory, or fewer samples a step."
