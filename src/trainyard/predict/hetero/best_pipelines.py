"""Finds the fastest pipelines over a heterogeneous cluster, and the fastest layout of each part alone.

Layers are partitioned over stages exactly (`assign_layers.py`), for all layouts that a lower bound does not exclude;
the steps of the best are then simulated operation by operation (`pipeline/simulation.py`). A part is a number of
devices of one machine; a case is one layout, a row of the arrays of a `PipelineTable`.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from math import ceil, gcd
from typing import Literal, NamedTuple

import numpy as np

from trainyard.errors import BadJob
from trainyard.predict.economics.training_budget import NO_BUDGET, TrainingBudget
from trainyard.predict.hetero import fleet, pipelines
from trainyard.predict.hetero.assign_layers import assign
from trainyard.predict.hetero.fleet import FleetPart, PartModel
from trainyard.predict.hetero.pipeline_step import HeteroPipeline, HeteroPipelineStep, cost_pipeline
from trainyard.predict.hetero.pipelines import PipelineTable
from trainyard.predict.inputs import layout_space
from trainyard.predict.inputs.constant_sets import ConstantSet
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import LayoutSpace, PlannerInput
from trainyard.predict.pipeline import schedules, simulation, stages
from trainyard.predict.search import infeasible, remedies, search
from trainyard.predict.search.layout_cost import LayoutCost
from trainyard.units import counted, show_gigabytes

_SCHEDULE, _LEAVE_OUT = schedules.SCHEDULES.index("1f1b"), "Leave out --fix interleave and --fix schedule."
_SIMULATED_LAYOUTS = 32
"""Number of layouts, the best by the times of their stages, whose step is simulated."""


class PartResult(NamedTuple):
    """The fastest layout of one part alone, or the reason why there is none."""

    part: FleetPart
    choice: LayoutCost | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroResult:
    """The result of a search. `searched`: combinations of layout and order of the parts that divide evenly; `fitting`:
    those that may fit in memory. `tuned`: the constants of each part."""

    pipelines: tuple[HeteroPipelineStep, ...]
    alone: tuple[PartResult, ...]
    searched: int
    fitting: int
    tuned: tuple[ConstantSet, ...]


def find(
    wanted: PlannerInput,
    parts: tuple[FleetPart, ...],
    framework: Framework,
    most: int = 10,
    budget: TrainingBudget = NO_BUDGET,
) -> HeteroResult:
    """Finds the `most` fastest pipelines over `parts`, and the fastest layout of each part alone. `wanted.devices`:
    ranks of all parts; `wanted.fixed`: layout axis -> value that the user fixed. `framework`: what runs the job, which
    limits the layouts. `budget`: with tokens, for days and dollars. Raises `BadInput` for parts that
    cannot run one job, and `BadJob` if no layout divides them and the model, or none fits."""
    fleet.check(parts)
    search.check_dtype(wanted, framework, [part.machine for part in parts])
    if wanted.fixed.get("interleave", 1) != 1 or wanted.fixed.get("schedule", _SCHEDULE) != _SCHEDULE:
        fixed = ", ".join(f"{key} = {wanted.fixed[key]!r}" for key in ("interleave", "schedule") if key in wanted.fixed)
        raise BadJob(f"{fixed}, but across different devices each rank has one stage and runs 1F1B.", _LEAVE_OUT)
    if wanted.fixed.get("offload"):
        raise BadJob(
            f"offload = {wanted.fixed['offload']} is not supported across different devices.",
            "Leave out --fix offload.",
        )
    pipelines.require_decoder(wanted)
    layouts = pipelines.enumerate_layouts(wanted, parts, framework)
    if not len(layouts):
        raise BadJob(*_explain_indivisible(wanted, parts, framework))
    part_models = fleet.model_parts(wanted, parts, framework)
    tables = pipelines.build_tables(wanted, layouts, framework, part_models)
    fastest = find_best(tables, wanted)
    if not fastest:
        raise BadJob(*_explain_too_large(wanted, parts, framework, part_models, layouts))
    simulated = simulation.simulate([pipeline.pipeline for pipeline in fastest])
    steps = [
        cost_pipeline(pipeline, simulated_pipeline, layout_space.job_of(wanted, pipeline.axes, framework.keeps), budget)
        for pipeline, simulated_pipeline in zip(fastest, simulated, strict=True)
    ]
    steps.sort(key=lambda step: step.choice.plan.ledger.wall_ns)
    return HeteroResult(
        pipelines=tuple(steps[:most]),
        alone=tuple(_plan_part(wanted, part, framework, budget) for part in parts),
        searched=len(layouts) * len(fleet.orders(parts)),
        fitting=sum(len(table.cases) for table in tables),
        tuned=tuple(model.tuned for model in part_models),
    )


def find_best(
    tables: list[PipelineTable], wanted: PlannerInput, most: int = _SIMULATED_LAYOUTS
) -> list[HeteroPipeline]:
    """The `most` best pipelines by the times of their stages, the fastest first. Candidates are tried in the order of
    their lower bound, until no other can be among the best. `tables`: one per depth and order of the parts."""
    # Distinct runs of layers by their counts, and the run of each (first layer, end).
    runs, run_index = stages.runs(pipelines.require_decoder(wanted))
    candidates = [(table, row) for table in tables for row in range(len(table.cases))]
    bounds = np.concatenate([table.bound for table in tables]) if tables else np.zeros(0)
    best_pipelines: list[tuple[float, int, HeteroPipeline]] = []  # (seconds, index in `candidates`, pipeline), sorted
    for index in np.argsort(bounds, kind="stable").tolist():
        if len(best_pipelines) == most and bounds[index] >= best_pipelines[-1][0]:
            break
        table, row = candidates[index]
        layers_per_stage = assign(table.costs(row, runs, run_index), round(float(table.cases.accumulate[row])))
        pipeline = HeteroPipeline(table=table, row=row, layers_per_stage=layers_per_stage or ())
        if layers_per_stage is not None and (
            len(best_pipelines) < most or pipeline.flow_seconds < best_pipelines[-1][0]
        ):
            insort(best_pipelines, (pipeline.step_seconds, index, pipeline))
            del best_pipelines[most:]
    return [pipeline for _, _, pipeline in best_pipelines]


def _plan_part(wanted: PlannerInput, part: FleetPart, framework: Framework, budget: TrainingBudget) -> PartResult:
    """The fastest layout of one part alone, without the pipeline axes (`pp`, `interleave`) that were fixed for the
    whole cluster; the reason if there is none. `wanted`: the model and batch, for the whole cluster; `budget`: with
    tokens, for days and dollars."""
    fixed = {axis: value for axis, value in wanted.fixed.items() if axis not in ("pp", "interleave")}
    part_input = wanted._replace(devices=part.ranks, per_node=part.machine.ranks_per_node, fixed=fixed)
    try:
        choice = search.fastest(part_input, part.machine, framework, budget, refuses=lambda _: None)  # refuses no job
        return PartResult(part=part, choice=choice)
    except BadJob as error:
        return PartResult(part=part, choice=None, reason=error.message)


def _unit_of_parts(parts: tuple[FleetPart, ...]) -> Literal["devices", "ranks"]:
    """`devices` if each device of the parts has one rank, else `ranks`."""
    return remedies.unit_of_ranks(part.machine for part in parts)


def _explain_indivisible(wanted: PlannerInput, parts: tuple[FleetPart, ...], framework: Framework) -> tuple[str, str]:
    """(message, next step) if no layout divides all parts and the model evenly."""
    max_ranks, layers = fleet.max_stage_ranks(parts), wanted.model.layers
    part_names = " and ".join(str(part) for part in parts)
    pp = wanted.fixed.get("pp")
    step = remedies.leave_out(
        wanted, lambda changed: _count_if_any_fits(changed, parts, framework)
    ) or _suggest_multiple(wanted, parts)
    if pp and wanted.devices % pp == 0 and max_ranks % (wanted.devices // pp):
        ranks = wanted.devices // pp
        part = next(part for part in parts if part.ranks % ranks)
        return (
            f"pp {pp} makes stages of {ranks:,} ranks, which do not divide the {part.ranks:,} of {part.machine.name}: "
            f"{part.ranks:,} % {ranks:,} = {part.ranks % ranks:,}. pp must be a multiple of "
            f"{wanted.devices // max_ranks:,}.",
            step,
        )
    if wanted.devices // max_ranks > layers:
        return (
            f"{part_names} divide into whole stages of at most {max_ranks:,} ranks, which makes "
            f"{wanted.devices // max_ranks:,} stages for {layers} layers.",
            step,
        )
    return infeasible.explain_no_layout(wanted, framework, _unit_of_parts(parts), some_divide=False), step


def _count_if_any_fits(wanted: PlannerInput, parts: tuple[FleetPart, ...], framework: Framework) -> int:
    """The number of layouts that divide all parts and the model evenly; 0 if none fits with any partition of layers."""
    layouts = pipelines.enumerate_layouts(wanted, parts, framework)
    if not len(layouts):
        return 0
    part_models = fleet.model_parts(wanted, parts, framework)
    tables = pipelines.build_tables(wanted, layouts, framework, part_models)
    return len(layouts) if find_best(tables, wanted, most=1) else 0


def _suggest_multiple(wanted: PlannerInput, parts: tuple[FleetPart, ...]) -> str:
    """The next step if there are too many or uneven stages: a multiple of devices with at most one stage per layer."""
    least_ranks = 1 << ceil(wanted.devices / wanted.model.layers - 1).bit_length()
    least_devices = max(least_ranks // gcd(least_ranks, part.machine.device.ranks) for part in parts)
    return f"Use a multiple of {least_devices:,} devices of each, or leave some out."


def _explain_too_large(
    wanted: PlannerInput,
    parts: tuple[FleetPart, ...],
    framework: Framework,
    part_models: tuple[PartModel, ...],
    layouts: LayoutSpace,
) -> tuple[str, str]:
    """(message, next step) if no layout fits: the bytes that each rank lacks, and the smallest multiple of the parts
    that would be enough, up to 64."""
    missing = pipelines.missing_bytes(wanted, layouts, framework, part_models)
    part_names = " and ".join(str(part) for part in parts)
    tried = counted(len(layouts), "layout")
    message = f"{wanted.model.name} fits on {part_names} in none of {tried} with any partition of layers"
    unit = _unit_of_parts(parts).removesuffix("s")
    message += f": each {unit} lacks {show_gigabytes(missing)}." if missing > 1 else "."
    if step := remedies.leave_out(wanted, lambda changed: _count_if_any_fits(changed, parts, framework)):
        return message, step
    for factor in remedies.CLUSTER_FACTORS:
        larger_parts = tuple(FleetPart(part.machine, part.devices * factor) for part in parts)
        larger_input = wanted._replace(devices=wanted.devices * factor)
        if _count_if_any_fits(larger_input, larger_parts, framework):
            return message, f"{','.join(str(part) for part in larger_parts)} would be enough."
    return message, "Use devices with more memory, or fewer samples per step."
