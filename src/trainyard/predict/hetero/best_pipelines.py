"""The best pipelines over a cluster of unlike parts, and the best that each part does by itself.

Which layers a stage has is assigned exactly (`assign_layers.py`), for all layouts that a bound does not rule out; the
steps of the best of these are then simulated operation by operation (`pipeline/simulation.py`).
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from trainyard.errors import BadJob
from trainyard.predict.hetero import fleet, pipelines
from trainyard.predict.hetero.assign_layers import assign
from trainyard.predict.hetero.fleet import FleetPart, PartModel
from trainyard.predict.hetero.pipeline_step import HeteroPipeline, HeteroPipelineStep, cost_pipeline
from trainyard.predict.hetero.pipelines import Lines
from trainyard.predict.inputs import layout_space
from trainyard.predict.inputs.constant_sets import ConstantSet
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import LayoutSpace, PlannerInput
from trainyard.predict.pipeline import schedules, simulation, stages
from trainyard.predict.search import infeasible, search
from trainyard.predict.search.layout_cost import LayoutCost
from trainyard.units import show_size

_SCHEDULE, _LEAVE_OUT = schedules.SCHEDULES.index("1f1b"), "Leave out --fix interleave and --fix schedule."
_RUN = 32
"""Of how many layouts, the best by what their stages take, a step is run."""


class Alone(NamedTuple):
    """A part by itself: its fastest, or why there is none."""

    part: FleetPart
    choice: LayoutCost | None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroResult:
    """`searched`: layouts and orders of the parts that divide everything; `fitting`: that memory may hold. `tuned`: of
    each part."""

    pipelines: tuple[HeteroPipelineStep, ...]
    alone: tuple[Alone, ...]
    searched: int
    fitting: int
    tuned: tuple[ConstantSet, ...]


def find(
    wanted: PlannerInput, parts: tuple[FleetPart, ...], framework: Framework, most: int = 10, budget: float = 0.0
) -> HeteroResult:
    """The `most` fastest. `wanted.devices`: ranks of all parts. Raises `BadInput` for parts that no job can have, and
    `BadJob` where no layout divides them and the model, or none fits."""
    search.check_dtype(wanted, framework)
    fleet.check(parts)
    if wanted.fixed.get("interleave", 1) != 1 or wanted.fixed.get("schedule", _SCHEDULE) != _SCHEDULE:
        fixed = ", ".join(f"{key} = {wanted.fixed[key]!r}" for key in ("interleave", "schedule") if key in wanted.fixed)
        raise BadJob(f"{fixed}, but over parts of different devices each rank has one stage and runs 1F1B.", _LEAVE_OUT)
    if wanted.fixed.get("offload"):
        raise BadJob(
            f"offload = {wanted.fixed['offload']} is not planned over parts of different devices.",
            "Leave out --fix offload.",
        )
    pipelines.decoder(wanted)
    every = pipelines.split(wanted, parts, framework)
    if not len(every):
        raise BadJob(*_undivided(wanted, parts, framework))
    where = fleet.places(wanted, parts, framework)
    all_lines = pipelines.lines(wanted, every, framework, where)
    found = best(all_lines, wanted)
    if not found:
        raise BadJob(*_too_large(wanted, parts, framework, where, every))
    ran = simulation.simulate([one.pipeline for one in found])
    steps = [
        cost_pipeline(one, its, layout_space.job_of(wanted, one.axes), budget)
        for one, its in zip(found, ran, strict=True)
    ]
    steps.sort(key=lambda one: one.choice.plan.ledger.wall_ns)
    return HeteroResult(
        pipelines=tuple(steps[:most]),
        alone=tuple(_alone(wanted, one, framework, budget) for one in parts),
        searched=len(every) * len(fleet.orders(parts)),
        fitting=sum(len(line.cases) for line in all_lines),
        tuned=tuple(one.tuned for one in where),
    )


def best(all_lines: list[Lines], wanted: PlannerInput, most: int = _RUN) -> list[HeteroPipeline]:
    """The `most` that take least by what their stages do, the first one first. They are tried in the order of their
    bound, until no other can be among these."""
    some, place = stages.runs(pipelines.decoder(wanted))
    rows = [(line, row) for line in all_lines for row in range(len(line.cases))]
    bounds = np.concatenate([line.bound for line in all_lines]) if all_lines else np.zeros(0)
    kept: list[tuple[float, int, HeteroPipeline]] = []
    for at in np.argsort(bounds, kind="stable").tolist():
        if len(kept) == most and bounds[at] >= kept[-1][0]:
            break
        line, row = rows[at]
        counts = assign(line.costs(row, some, place), round(float(line.cases.accumulate[row])))
        one = HeteroPipeline(line=line, row=row, counts=counts or ())
        if counts is not None and (len(kept) < most or one.flow < kept[-1][0]):
            insort(kept, (one.seconds, at, one))
            del kept[most:]
    return [one for _, _, one in kept]


def _alone(wanted: PlannerInput, part: FleetPart, framework: Framework, budget: float) -> Alone:
    fixed = {axis: value for axis, value in wanted.fixed.items() if axis not in ("pp", "interleave")}
    mine = wanted._replace(devices=part.ranks, per_node=part.machine.ranks_per_node, fixed=fixed)
    try:
        return Alone(part, search.fastest(mine, part.machine, framework, budget, lambda _: None))
    except BadJob as error:
        return Alone(part, None, error.says)


def _undivided(wanted: PlannerInput, parts: tuple[FleetPart, ...], framework: Framework) -> tuple[str, str]:
    most, layers, named = fleet.widest(parts), wanted.model.layers, " and ".join(str(part) for part in parts)
    pp = wanted.fixed.get("pp")
    if pp and wanted.devices % pp == 0 and most % (wanted.devices // pp):
        ranks = wanted.devices // pp
        part = next(one for one in parts if one.ranks % ranks)
        said = f"pp {pp} makes stages of {ranks:,} ranks, and {part.ranks:,} of {part.machine.name} are no whole number"
        return f"{said} of them: {part.ranks:,} % {ranks:,} = {part.ranks % ranks:,}.", _multiples(wanted, layers)
    if wanted.devices // most > layers:
        return (
            f"{named} have whole stages of at most {most:,} ranks in common, which makes {wanted.devices // most:,} "
            f"stages of {layers} layers.",
            _multiples(wanted, layers),
        )
    return infeasible.undivided(wanted, framework)


def _multiples(wanted: PlannerInput, layers: int) -> str:
    least = 1 << ceil(wanted.devices / layers - 1).bit_length()
    return f"Take as many devices of each as are a multiple of {least:,}, or leave some out."


def _too_large(
    wanted: PlannerInput,
    parts: tuple[FleetPart, ...],
    framework: Framework,
    where: tuple[PartModel, ...],
    every: LayoutSpace,
) -> tuple[str, str]:
    more = pipelines.missing(wanted, every, framework, where)
    named = " and ".join(str(part) for part in parts)
    says = f"{wanted.model.name} fits on {named} in none of {len(every):,} layouts, however its layers are divided"
    says += f": {show_size(more)} a device too much." if more > 1 else "."
    for times in (2, 4, 8, 16, 32, 64):
        larger = tuple(FleetPart(one.machine, one.devices * times) for one in parts)
        bigger = wanted._replace(devices=wanted.devices * times)
        some = pipelines.split(bigger, larger, framework)
        if len(some) and best(
            pipelines.lines(bigger, some, framework, fleet.places(bigger, larger, framework)), bigger, 1
        ):
            return says, f"{','.join(str(one) for one in larger)} would do."
    return says, "Use devices of more memory, or fewer samples a step."
