"""All pipelines over a heterogeneous cluster, as columns: the time of layers on each stage, the layers that fit there,
and a lower bound over all partitions of the layers.

Each part (a number of devices of one machine) has whole stages of the same number of ranks, and the parts follow one
another in any order. A case is one layout, an item of every array of `Cases`; a column has the shape [case]. MoE layers
have experts; the other layers are dense.
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
from trainyard.model import Model
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

StageColumns = npt.NDArray[np.float64]
"""A value for each case and each stage of its pipeline: [case, stage]."""
DENSE, ROUTED = StageLayers(column(1), column(0)), StageLayers(column(0), column(1))
"""A layer of each kind: with a dense MLP, and with experts."""
_BISECTIONS = 40
"""Halvings of an interval in which a threshold is searched: to 1 part in 10^12 of it."""
_LAYER_TOLERANCE = 1e-6
"""Fraction of a layer by which a capacity is rounded up: base and layer bytes are differences of large numbers."""
MAX_STAGE_RUNS = 1 << 24
"""Largest product of stages and squared layers, all of which are costed: 126 layers on 126 stages have 2 million."""
ONE_STAGE_PIPELINES = PipelineSupport(schedules=("1f1b",))
"""Pipelines with one stage per rank."""


@dataclass(frozen=True, kw_only=True)
class PipelineTable:
    """Pipelines with the same stages, one per row of `cases`. `part_of_stage`: stage -> index in `part_models`. Lists
    have an item for each kind of layer that the model has, dense before MoE: `layer_seconds` of one layer for a
    micro-batch, forward and backward; `layer_capacities`: most layers that fit; `layer_counts`: layers of the model.
    `fixed_seconds`: seconds of a micro-batch on a stage outside its layers."""

    cases: Cases
    part_models: tuple[PartModel, ...]
    part_of_stage: npt.NDArray[np.intp]
    layer_seconds: list[StageColumns]
    layer_capacities: list[StageColumns]
    layer_counts: list[int]
    fixed_seconds: StageColumns

    @cached_property
    def bound(self) -> Column:
        """Lower bound in seconds of the micro-batches of a step, [case], over all assignments of the layers to stages:
        one micro-batch passes all stages, the others follow at the pace, seconds per micro-batch, of the slowest."""
        # As if each layer were of the kind that is fastest on its stage.
        layers, layer_seconds = sum(self.layer_counts), np.minimum.reduce(self.layer_seconds)
        best_capacity = np.maximum.reduce(self.layer_capacities)
        pace_s = _lower_bound_of_pace(layer_seconds, self.fixed_seconds, best_capacity, layers, min_layers=1)
        for seconds, capacity, count in zip(self.layer_seconds, self.layer_capacities, self.layer_counts):
            kind_pace_s = _lower_bound_of_pace(seconds, self.fixed_seconds, capacity, count, min_layers=0)
            pace_s = np.maximum(pace_s, kind_pace_s)
        # Each stage has one layer at least; the others are as fast as on the fastest stage.
        extra_layers = layers - layer_seconds.shape[1]
        pass_s = np.sum(self.fixed_seconds + layer_seconds, axis=1) + extra_layers * np.min(layer_seconds, axis=1)
        return (self.cases.accumulate - 1) * pace_s + pass_s

    def costs(self, row: int, runs: StageLayers, run_index: npt.NDArray[np.intp]) -> Costs:
        """Seconds of each stage of the case at `row` with each run of layers, [stage, first layer, end]; infinite if
        the run does not fit in memory. `runs`, `run_index`: as returned by `stages.runs`."""
        depth, case = len(self.part_of_stage), self.cases.take(np.array([row]))
        run_counts = [count for count in runs if count.any()]
        seconds = self.fixed_seconds[row][:, None] + sum(
            layer_seconds[row][:, None] * count for layer_seconds, count in zip(self.layer_seconds, run_counts)
        )
        # Each stage with each run, [stage x run]: stages from this one to the last, and layers of the run.
        remaining_stages = np.repeat(np.arange(depth, 0.0, -1), len(runs.dense))
        stage_runs = StageLayers(*(np.tile(count, depth) for count in runs))
        with np.errstate(invalid="ignore", divide="ignore"):  # runs without a layer
            memory = stages.memory(case, stage_runs, remaining_stages, column(remaining_stages == depth)).total
            device_bytes = memory.reshape(depth, -1) * RESERVED
        usable_bytes = np.array([self.part_models[part].usable_memory for part in self.part_of_stage])  # [stage]
        fits = (device_bytes <= usable_bytes[:, None]) & (runs.layers > 0)
        return np.where(fits, seconds, np.inf)[:, run_index]


def _lower_bound_of_pace(
    layer_seconds: StageColumns, fixed_seconds: StageColumns, capacity: StageColumns, layer_count: int, min_layers: int
) -> Column:
    """Lower bound, [case], of a pipeline's pace: the seconds per micro-batch of its slowest stage. It is the least time
    in which each stage, with at least `min_layers` layers and at most its `capacity`, can run so many layers that all
    stages together hold `layer_count`. Found by bisection, and rounded down. `layer_seconds`: of one layer;
    `fixed_seconds`: of a stage outside its layers; both for a micro-batch."""
    low_s = np.max(fixed_seconds + min_layers * layer_seconds, axis=1)
    high_s = np.max(fixed_seconds + layer_seconds * np.maximum(capacity, 1), axis=1)
    for _ in range(_BISECTIONS):
        middle_s = (low_s + high_s) / 2
        layers_of_stage = np.clip(np.floor((middle_s[:, None] - fixed_seconds) / layer_seconds), 0.0, capacity)
        holds_all = np.sum(layers_of_stage, axis=1) >= layer_count
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
    """All layouts whose stages each lie within one of `parts`, and that `framework` supports. The depth of the pipeline
    follows from the ranks per stage, which divide every part. Raises `BadJob` for more combinations than can be
    costed."""
    spaces: list[LayoutSpace] = []
    for ranks, per_node in product(
        layout_space.divisors(fleet.max_stage_ranks(parts)), {part.machine.ranks_per_node for part in parts}
    ):
        depth = wanted.devices // ranks
        if wanted.fixed.get("pp", depth) == depth <= wanted.model.layers:
            _check_runs(wanted, depth)
            fixed = wanted.fixed | {"pp": depth}
            spaces.append(layout_space.space(wanted._replace(per_node=per_node, fixed=fixed), ONE_STAGE_PIPELINES))
    # The spaces overlap: a set of rows keeps each layout once. Columns of a row are in the order of `AXES`.
    rows = {row for space in spaces for row in zip(*(values.tolist() for values in space.columns.values()))}
    table = np.array(sorted(rows), np.int64).reshape(-1, len(layout_space.AXES))
    layouts = LayoutSpace({axis: table[:, index] for index, axis in enumerate(layout_space.AXES)})
    return layouts.keep(framework.allows(wanted, layouts))


def _check_runs(wanted: PlannerInput, depth: int) -> None:
    """Raises `BadJob` if `depth` stages, each with any contiguous run of layers, are more combinations than can be
    costed."""
    runs = depth * wanted.model.layers**2
    if runs > MAX_STAGE_RUNS:
        raise BadJob(
            f"{depth:,} stages x {wanted.model.layers:,}^2 runs of layers = {runs:,}, more than the "
            f"{MAX_STAGE_RUNS:,} that can be costed across different devices.",
            f"Fix fewer stages, such as --fix pp={max(2, MAX_STAGE_RUNS // wanted.model.layers**2)}, or name one "
            "machine.",
        )


class _PipelineRows(NamedTuple):
    """Pipelines of one depth and one order of the parts. `part_of_stage`: index of each stage's part. Lists have an
    item for each kind of layer that the model has, dense before MoE: `layer_counts` of the model, `base_bytes` of a
    stage without layers and `layer_bytes` per layer. `usable_bytes`: per device of each stage, [stage]."""

    cases: Cases
    part_of_stage: npt.NDArray[np.intp]
    base_bytes: list[StageColumns]
    layer_bytes: list[StageColumns]
    usable_bytes: Column
    layer_counts: list[int]

    def capacities(self, extra_bytes: Column | float = 0.0) -> list[StageColumns]:
        """For each kind of layer, the largest number of layers of only that kind that fit on each stage if its device
        had `extra_bytes` more memory (a number, or one per case in shape [case, 1])."""
        usable_bytes = self.usable_bytes + extra_bytes
        return [
            np.maximum(np.floor((usable_bytes - base) / layer + _LAYER_TOLERANCE), 0.0)
            for base, layer in zip(self.base_bytes, self.layer_bytes)
        ]

    def fits(self, capacities: list[StageColumns]) -> npt.NDArray[np.bool_]:
        """Mask of the cases that may fit, given the `capacities` of stages for each kind of layer: every stage holds a
        layer, and the stages hold all layers of each kind and in total."""
        largest, layers = np.maximum.reduce(capacities), sum(self.layer_counts)
        fits_kinds = [np.sum(capacity, axis=1) >= count for capacity, count in zip(capacities, self.layer_counts)]
        return np.logical_and.reduce([*fits_kinds, np.sum(largest, axis=1) >= layers, np.min(largest, axis=1) >= 1])


def _enumerate_pipelines(
    wanted: PlannerInput, layouts: LayoutSpace, framework: Framework, part_models: tuple[PartModel, ...]
) -> Iterator[_PipelineRows]:
    """Yields the pipelines of each depth (number of stages) and order of the parts, with the bytes of their stages."""
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
            usable_bytes = np.array([model.usable_memory for model in part_models])[part_of_stage]
            yield _PipelineRows(
                cases=cases,
                part_of_stage=part_of_stage,
                base_bytes=list(base_bytes),
                layer_bytes=list(layer_bytes),
                usable_bytes=usable_bytes,
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
    """Least number of additional bytes per rank with which at least one of the pipelines with these layouts would
    fit, by bisection."""
    least_missing = np.inf
    for rows in _enumerate_pipelines(wanted, layouts, framework, part_models):
        low_bytes = np.zeros(len(rows.cases))
        layers, bytes_of_kind = wanted.model.layers, zip(rows.base_bytes, rows.layer_bytes)
        high_bytes = np.max([base + layer * layers for base, layer in bytes_of_kind], axis=(0, 2))
        for _ in range(_BISECTIONS):
            middle_bytes = (low_bytes + high_bytes) / 2
            fits = rows.fits(rows.capacities(middle_bytes[:, None]))
            low_bytes, high_bytes = np.where(fits, low_bytes, middle_bytes), np.where(fits, middle_bytes, high_bytes)
        least_missing = min(least_missing, float(np.min(high_bytes)))
    return least_missing


def _build_table(
    cases: Cases,
    part_models: tuple[PartModel, ...],
    part_of_stage: npt.NDArray[np.intp],
    layer_capacities: list[StageColumns],
    layer_counts: list[int],
) -> PipelineTable:
    """The costs of the pipelines `cases`, which may fit. Lists have an item for each kind of layer: `layer_capacities`,
    the most layers that fit on each stage, and `layer_counts` of the model."""
    times_of_part = [step_bounds.parts(cases, model.hardware, model.values) for model in part_models]
    last_times = times_of_part[part_of_stage[-1]]
    fixed_seconds = np.stack([np.full(len(cases), times_of_part[part].host_s) for part in part_of_stage], axis=1)
    hop_seconds = hops(cases, part_models, part_of_stage, times_of_part)
    fixed_seconds[:, :-1] += hop_seconds  # receives gradients from the next stage
    fixed_seconds[:, 1:] += hop_seconds  # receives activations from the stage before
    fixed_seconds[:, -1] += last_times.head_forward_s + last_times.head_backward_s + last_times.loss_s
    layer_seconds: list[StageColumns] = []
    for times_of_kind in zip(*(part.kinds for part in times_of_part), strict=True):  # one kind of layer on each part
        seconds = [np.broadcast_to(times.forward_s + times.backward_s, len(cases)) for times in times_of_kind]
        layer_seconds.append(np.stack(seconds, axis=1)[:, part_of_stage])
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
    cases: Cases, part_models: tuple[PartModel, ...], part_of_stage: npt.NDArray[np.intp], times_of_part: list[Parts]
) -> StageColumns:
    """Seconds of a micro-batch's transfer from each stage but the last to the next one, [case, stage]. `times_of_part`:
    times of a micro-batch on each of `part_models`; `part_of_stage`: stage -> index in both."""
    seconds: list[Column] = []
    for part, next_part in pairwise(part_of_stage):
        sender, receiver = part_models[part], part_models[next_part]
        crosses = part != next_part
        transfer_s = (
            stages.across(cases, (sender.hardware, sender.values), (receiver.hardware, receiver.values))
            if crosses
            else times_of_part[part].transfer_s
        )
        seconds.append(np.broadcast_to(transfer_s, len(cases)))
    return np.stack(seconds, axis=1)


def _stage_bytes(cases: Cases, kind: StageLayers, depth: int) -> tuple[StageColumns, StageColumns]:
    """(reserved bytes of each of `depth` stages without layers, bytes per layer of a `kind`), [case, stage]. `kind`:
    `DENSE` or `ROUTED`. Both are linear in the in-flight micro-batches, so the stages between the first and the last
    are interpolated."""

    def bytes_at(remaining_stages: int, is_first: int, layers: int) -> Column:
        """Bytes, [case], of a stage with `layers` layers and `remaining_stages` stages from it on."""
        run = StageLayers(*(layers * count for count in kind))
        memory = stages.memory(cases, run, column(remaining_stages), column(is_first)).total
        return np.broadcast_to(memory * RESERVED, len(cases))

    # First, middle and last stages, [case, stage], with one and with two layers.
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
    # From one_layer = base + layer and two_layers = base + 2 layer.
    return 2 * one_layer - two_layers, two_layers - one_layer


def _interpolate(highest: Column, lowest: Column, in_flight: StageColumns) -> StageColumns:
    """Values of the stages between the first and the last, interpolated by their in-flight micro-batches (`in_flight`,
    descending) between `highest` and `lowest`, [case], of the stages with most and with fewest."""
    if not in_flight.shape[1]:
        return in_flight
    most_in_flight, least_in_flight = in_flight[:, :1], in_flight[:, -1:]
    share = (in_flight - least_in_flight) / np.maximum(most_in_flight - least_in_flight, 1.0)
    return lowest[:, None] + (highest - lowest)[:, None] * share
