"""All pipelines over a heterogeneous cluster, as columns: the time of layers on each stage, the layers that fit there,
and a lower bound over all partitions of the layers.

Each part has whole stages of the same number of ranks, and the parts follow one another in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadJob
from trainyard.job import Model
from trainyard.predict.hetero import fleet
from trainyard.predict.hetero.assign_layers import Costs
from trainyard.predict.hetero.fleet import FleetPart, PartModel
from trainyard.predict.inputs import layout_space
from trainyard.predict.inputs.cases import Cases, Column, column
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import LayoutSpace, PipelineSupport, PlannerInput
from trainyard.predict.memory.framework_memory import RESERVED
from trainyard.predict.pipeline import stages, step_bounds
from trainyard.predict.pipeline.stages import StageLayers
from trainyard.predict.pipeline.step_bounds import Parts

DENSE, ROUTED = StageLayers(column(1), column(0)), StageLayers(column(0), column(1))
"""A layer of each kind."""
MAX_STAGE_RUNS = 1 << 24
"""Largest product of stages and squared layers, all of which are costed: 126 layers on 126 stages have 2 million."""
ONE_STAGE_PIPELINES = PipelineSupport(schedules=("1f1b",))
"""Pipelines with one stage per rank."""


@dataclass(frozen=True, kw_only=True)
class PipelineTable:
    """Pipelines with the same stages, one per row of `cases`. `part_of_stage`: stage -> index in `part_models`. By kind
    of layer: `layer_seconds` of one layer, [case, stage]; `layer_capacities`: most layers that fit, [case, stage];
    `layer_counts`: layers of the model. `fixed_seconds`: time of a stage outside its layers, [case, stage]."""

    cases: Cases
    part_models: tuple[PartModel, ...]
    part_of_stage: npt.NDArray[np.intp]
    layer_seconds: list[Column]
    layer_capacities: list[Column]
    layer_counts: list[int]
    fixed_seconds: Column

    @cached_property
    def bound(self) -> Column:
        """Lower bound in seconds over all assignments of a case; infinite if none fits."""
        layers, layer_seconds = sum(self.layer_counts), np.minimum.reduce(self.layer_seconds)
        best_capacity = np.maximum.reduce(self.layer_capacities)
        pace = _lower_bound_of_pace(layer_seconds, self.fixed_seconds, best_capacity, layers, 1)
        for seconds, capacity, count in zip(self.layer_seconds, self.layer_capacities, self.layer_counts):
            pace = np.maximum(pace, _lower_bound_of_pace(seconds, self.fixed_seconds, capacity, count, 0))
        spare = layers - layer_seconds.shape[1]
        total = np.sum(self.fixed_seconds + layer_seconds, axis=1) + spare * np.min(layer_seconds, axis=1)
        return (self.cases.accumulate - 1) * pace + total

    def costs(self, row: int, runs: StageLayers, run_index: npt.NDArray[np.intp]) -> Costs:
        """Seconds of each stage of one case with each run of layers; infinite if the run does not fit in memory.
        `runs`, `run_index`: as returned by `stages.runs`."""
        depth, case = len(self.part_of_stage), self.cases.take(np.array([row]))
        run_counts = [count for count in runs if count.any()]
        seconds = self.fixed_seconds[row][:, None] + sum(
            layer_seconds[row][:, None] * count for layer_seconds, count in zip(self.layer_seconds, run_counts)
        )
        remaining_stages = np.repeat(np.arange(depth, 0.0, -1), len(runs.dense))
        stage_runs = StageLayers(*(np.tile(count, depth) for count in runs))
        with np.errstate(invalid="ignore", divide="ignore"):  # runs without a layer
            memory = stages.memory(case, stage_runs, remaining_stages, column(remaining_stages == depth)).total
            need = memory.reshape(depth, -1) * RESERVED
        limits = np.array([self.part_models[part].usable_memory for part in self.part_of_stage])
        allowed = (need <= limits[:, None]) & (runs.layers > 0)
        return np.where(allowed, seconds, np.inf)[:, run_index]


def _lower_bound_of_pace(
    layer_seconds: Column, fixed_seconds: Column, capacity: Column, count: int, min_layers: int
) -> Column:
    """Least pace at which the stages hold `count` layers in all, each at least `min_layers`: an approximation from
    below."""
    low_s = np.max(fixed_seconds + min_layers * layer_seconds, axis=1)
    high_s = np.max(fixed_seconds + layer_seconds * np.maximum(capacity, 1), axis=1)
    for _ in range(40):
        middle_s = (low_s + high_s) / 2
        layers_of_stage = np.clip(np.floor((middle_s[:, None] - fixed_seconds) / layer_seconds), 0.0, capacity)
        holds_all = np.sum(layers_of_stage, axis=1) >= count
        low_s, high_s = np.where(holds_all, low_s, middle_s), np.where(holds_all, middle_s, high_s)
    return low_s


def require_decoder(wanted: PlannerInput) -> Model:
    """The model of `wanted`, if it is a plain decoder. Raises `BadJob` otherwise."""
    model = wanted.model
    if isinstance(model, Model) and not model.hybrid_pattern:
        return model
    raise BadJob(
        f"across different devices only plain decoders are supported, and {model.name} is not one.",
        "Name one machine.",
    )


def enumerate_layouts(wanted: PlannerInput, parts: tuple[FleetPart, ...], framework: Framework) -> LayoutSpace:
    """All layouts whose stages each lie within one part."""
    spaces: list[LayoutSpace] = []
    for ranks, per_node in product(
        layout_space.divisors(fleet.max_stage_ranks(parts)), {part.machine.ranks_per_node for part in parts}
    ):
        depth = wanted.devices // ranks
        if wanted.fixed.get("pp", depth) == depth <= wanted.model.layers:
            _check_runs(wanted, depth)
            fixed = wanted.fixed | {"pp": depth}
            spaces.append(layout_space.space(wanted._replace(per_node=per_node, fixed=fixed), ONE_STAGE_PIPELINES))
    rows = {row for space in spaces for row in zip(*(values.tolist() for values in space.columns.values()))}
    table = np.array(sorted(rows), np.int64).reshape(-1, len(layout_space.AXES))
    layouts = LayoutSpace({axis: table[:, index] for index, axis in enumerate(layout_space.AXES)})
    return layouts.keep(framework.allows(wanted, layouts))


def _check_runs(wanted: PlannerInput, depth: int) -> None:
    """Raises `BadJob` for more runs of layers than can be costed."""
    runs = depth * wanted.model.layers**2
    if runs > MAX_STAGE_RUNS:
        raise BadJob(
            f"{depth:,} stages x {wanted.model.layers:,}^2 runs of layers = {runs:,}, more than the "
            f"{MAX_STAGE_RUNS:,} that can be costed across different devices.",
            f"Fix fewer stages, such as --fix pp={max(2, MAX_STAGE_RUNS // wanted.model.layers**2)}, or name one "
            "machine.",
        )


class _PipelineRows(NamedTuple):
    """Pipelines of one depth and one order of the parts. `part_of_stage`: index of each stage's part; by kind of layer:
    `layer_counts` of the model, `base_bytes` of a stage without layers and `layer_bytes` per layer, both [case, stage].
    `limit`: usable bytes per device of each stage."""

    cases: Cases
    part_of_stage: npt.NDArray[np.intp]
    base_bytes: list[Column]
    layer_bytes: list[Column]
    limit: Column
    layer_counts: list[int]

    def capacities(self, more: Column | float = 0.0) -> list[Column]:
        """Most layers that fit, by kind, with `more` bytes added to each device."""
        limit = self.limit + more
        return [
            np.maximum(np.floor((limit - base) / layer + 1e-6), 0.0)
            for base, layer in zip(self.base_bytes, self.layer_bytes)
        ]

    def fits(self, capacities: list[Column]) -> npt.NDArray[np.bool_]:
        """Mask of the cases that may fit: every stage holds a layer, and the stages hold all layers of each kind and in
        total."""
        largest, layers = np.maximum.reduce(capacities), sum(self.layer_counts)
        fits_kinds = [np.sum(capacity, axis=1) >= count for capacity, count in zip(capacities, self.layer_counts)]
        return np.logical_and.reduce([*fits_kinds, np.sum(largest, axis=1) >= layers, np.min(largest, axis=1) >= 1])


def _enumerate_pipelines(
    wanted: PlannerInput, layouts: LayoutSpace, framework: Framework, part_models: tuple[PartModel, ...]
) -> Iterator[_PipelineRows]:
    """Yields the pipelines of each depth and order of the parts, with the bytes of their stages."""
    model = require_decoder(wanted)
    routed = model.layers - model.dense_layers if model.experts else 0
    kinds = [(kind, count) for kind, count in ((DENSE, model.layers - routed), (ROUTED, routed)) if count]
    for depth in np.unique(layouts.columns["pp"]).tolist():
        depth_layouts = layouts.keep(layouts.columns["pp"] == depth)
        cases = layout_space.as_cases(wanted, depth_layouts, framework.keeps).take(np.arange(len(depth_layouts)))
        base_bytes, layer_bytes = zip(*(_stage_bytes(cases, kind, depth) for kind, _ in kinds), strict=True)
        layer_counts = [count for _, count in kinds]
        for order in fleet.orders(tuple(model.part for model in part_models)):
            stage_counts = [part_models[index].part.ranks * depth // wanted.devices for index in order]
            part_of_stage = np.repeat(order, stage_counts)
            limit = np.array([model.usable_memory for model in part_models])[part_of_stage]
            yield _PipelineRows(
                cases=cases,
                part_of_stage=part_of_stage,
                base_bytes=list(base_bytes),
                layer_bytes=list(layer_bytes),
                limit=limit,
                layer_counts=layer_counts,
            )


def build_tables(
    wanted: PlannerInput, layouts: LayoutSpace, framework: Framework, part_models: tuple[PartModel, ...]
) -> list[PipelineTable]:
    """The pipelines that may fit, one table per depth and order of the parts."""
    tables: list[PipelineTable] = []
    for rows in _enumerate_pipelines(wanted, layouts, framework, part_models):
        capacities = rows.capacities()
        fits = rows.fits(capacities)
        if fits.any():
            fitting = [capacity[fits] for capacity in capacities]
            tables.append(
                _build_table(rows.cases.take(fits), part_models, rows.part_of_stage, fitting, rows.layer_counts)
            )
    return tables


def missing_bytes(
    wanted: PlannerInput, layouts: LayoutSpace, framework: Framework, part_models: tuple[PartModel, ...]
) -> float:
    """Least number of additional bytes per device with which one of these pipelines would fit."""
    least_missing = np.inf
    for rows in _enumerate_pipelines(wanted, layouts, framework, part_models):
        low_bytes = np.zeros(len(rows.cases))
        layers, bytes_of_kind = wanted.model.layers, zip(rows.base_bytes, rows.layer_bytes)
        high_bytes = np.max([base + layer * layers for base, layer in bytes_of_kind], axis=(0, 2))
        for _ in range(40):
            middle_bytes = (low_bytes + high_bytes) / 2
            fits = rows.fits(rows.capacities(middle_bytes[:, None]))
            low_bytes, high_bytes = np.where(fits, low_bytes, middle_bytes), np.where(fits, middle_bytes, high_bytes)
        least_missing = min(least_missing, float(np.min(high_bytes)))
    return least_missing


def _build_table(
    cases: Cases,
    part_models: tuple[PartModel, ...],
    part_of_stage: npt.NDArray[np.intp],
    layer_capacities: list[Column],
    layer_counts: list[int],
) -> PipelineTable:
    """The costs of pipelines that may fit. By kind of layer: `layer_capacities`, the most layers that fit on each
    stage, [case, stage], and `layer_counts` of the model."""
    parts = [step_bounds.parts(cases, model.hardware, model.values) for model in part_models]
    last_part = parts[part_of_stage[-1]]
    fixed_seconds = np.stack([np.full(len(cases), parts[part].host_s) for part in part_of_stage], axis=1)
    hop_seconds = hops(cases, part_models, part_of_stage, parts)
    fixed_seconds[:, :-1] += hop_seconds
    fixed_seconds[:, 1:] += hop_seconds
    fixed_seconds[:, -1] += last_part.head_forward_s + last_part.head_backward_s + last_part.loss_s
    layer_seconds = [
        np.stack([np.broadcast_to(kind.forward_s + kind.backward_s, len(cases)) for kind in kinds], axis=1)[
            :, part_of_stage
        ]
        for kinds in zip(*(part.kinds for part in parts), strict=True)
    ]
    return PipelineTable(
        cases=cases,
        part_models=part_models,
        part_of_stage=part_of_stage,
        layer_seconds=layer_seconds,
        layer_capacities=layer_capacities,
        layer_counts=layer_counts,
        fixed_seconds=fixed_seconds,
    )


def hops(
    cases: Cases, part_models: tuple[PartModel, ...], part_of_stage: npt.NDArray[np.intp], parts: list[Parts]
) -> Column:
    """Seconds of the transfer from each stage but the last to the next one, [case, stage]."""
    seconds: list[Column] = []
    for part, next_part in pairwise(part_of_stage):
        sender, receiver = part_models[part], part_models[next_part]
        crosses = part != next_part
        hop = (
            stages.across(cases, (sender.hardware, sender.values), (receiver.hardware, receiver.values))
            if crosses
            else parts[part].transfer_s
        )
        seconds.append(np.broadcast_to(hop, len(cases)))
    return np.stack(seconds, axis=1)


def _stage_bytes(cases: Cases, kind: StageLayers, depth: int) -> tuple[Column, Column]:
    """Bytes of each stage without layers, and per layer, [case, stage]. Both are linear in the in-flight
    micro-batches."""

    def bytes_at(remaining_stages: int, is_first: int, layers: int) -> Column:
        run = StageLayers(*(layers * count for count in kind))
        memory = stages.memory(cases, run, column(remaining_stages), column(is_first)).total
        return np.broadcast_to(memory * RESERVED, len(cases))

    remaining_stages = np.arange(depth, 0, -1)
    in_flight = np.minimum(remaining_stages, cases.accumulate[:, None])
    one_layer, two_layers = (
        np.concatenate(
            [
                bytes_at(depth, 1, layers)[:, None],
                _interpolate(bytes_at(max(depth - 1, 2), 0, layers), bytes_at(2, 0, layers), in_flight[:, 1:-1]),
                bytes_at(1, 0, layers)[:, None],
            ],
            axis=1,
        )
        for layers in (1, 2)
    )
    return 2 * one_layer - two_layers, two_layers - one_layer


def _interpolate(highest: Column, lowest: Column, in_flight: Column) -> Column:
    """Values of the stages between the first and the last, interpolated between those with most and with fewest
    in-flight micro-batches."""
    if not in_flight.shape[1]:
        return in_flight
    high, low = in_flight[:, :1], in_flight[:, -1:]
    share = (in_flight - low) / np.maximum(high - low, 1.0)
    return lowest[:, None] + (highest - lowest)[:, None] * share
