"""The cost of a step of one pipeline over a heterogeneous cluster: time and memory of each stage, by account.

A part of the cluster is a number of devices of one machine; each stage of the pipeline runs on ranks of one part. An
account is a category of time of the step ledger, such as `compute/matmul`. A case is one layout, a row of `Cases`.
`best_pipelines.py` compares pipelines with `step_seconds`, and calls `cost_pipeline` for the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from trainyard.job import Job
from trainyard.plan import Plan
from trainyard.predict.economics import model_size, step_cost
from trainyard.predict.economics.training_budget import TrainingBudget
from trainyard.predict.hetero import pipelines
from trainyard.predict.hetero.fleet import FleetPart
from trainyard.predict.hetero.pipelines import PipelineTable
from trainyard.predict.inputs.cases import Cases, Column, column
from trainyard.predict.inputs.layout_space import AXES
from trainyard.predict.inputs.machine_model import ReferencePeak
from trainyard.predict.inputs.prediction_interval import uncalibrated
from trainyard.predict.memory.framework_memory import RESERVED
from trainyard.predict.memory.memory_parts import MemoryParts
from trainyard.predict.pipeline import stages, step_bounds
from trainyard.predict.pipeline.simulation import PipelineTimes, SimulatedPipeline
from trainyard.predict.pipeline.stages import StageLayers
from trainyard.predict.pipeline.step_bounds import Parts
from trainyard.predict.search.layout_cost import LayoutCost
from trainyard.predict.time import predicted_ledger, step
from trainyard.predict.time.data_parallel import Exposed
from trainyard.predict.time.step import AccountSeconds, Means, Once, StepTime


class HeteroStage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a pipeline. `part`: the part it runs on, such as `h100:64`. `layers`, starting at `first`; the last
    `experts` of them are MoE layers. `forward_ns`, `backward_ns`: per micro-batch; `idle_ns`: per step. `reserved`:
    bytes of the device's `memory`."""

    part: str
    first: int
    layers: int
    experts: int
    forward_ns: int
    backward_ns: int
    idle_ns: int
    reserved: int
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroPipelineStep:
    """The cost of a step of a pipeline over parts in the given order. `choice` has the memory of the fullest stage."""

    choice: LayoutCost
    order: tuple[FleetPart, ...]
    stages: tuple[HeteroStage, ...]


@dataclass(frozen=True, kw_only=True)
class HeteroPipeline:
    """One row of `table` with its layers partitioned over the stages."""

    table: PipelineTable
    row: int
    layers_per_stage: tuple[int, ...]

    @cached_property
    def case(self) -> Cases:
        return self.table.cases.take(np.array([self.row]))

    @property
    def axes(self) -> dict[str, int]:
        """The case's row of the layout space."""
        return {axis: round(float(getattr(self.case, axis)[0])) for axis in AXES}

    @cached_property
    def stage_layers(self) -> StageLayers:
        """Layers of each stage, [stage], without and with experts; dense layers are the model's first ones."""
        stage_ends = np.cumsum(self.layers_per_stage)  # first layer after each stage
        dense_layers = self.table.layer_counts[0] if self.has_dense_layers else 0
        dense_of_stage = np.diff(np.minimum(stage_ends, dense_layers), prepend=0).astype(np.float64)
        return StageLayers(dense_of_stage, np.array(self.layers_per_stage) - dense_of_stage)

    @property
    def has_dense_layers(self) -> bool:
        """Whether the model's first layers have no experts."""
        return len(self.table.layer_counts) > 1 or not float(self.case.experts[0])

    @cached_property
    def layers_by_kind(self) -> list[Column]:
        """Layers of each stage, for each kind of layer that the model has."""
        return [count for count in self.stage_layers if count.any()]

    @cached_property
    def part_times(self) -> list[Parts]:
        """Times of a micro-batch on each part of the cluster."""
        return [step_bounds.parts(self.case, model.hardware, model.values) for model in self.table.part_models]

    @cached_property
    def once_per_step(self) -> Once:
        """Work done once per step on each stage: communication of gradients and weights, the optimizer update and the
        host's work. Each column is [stage], in seconds; communication is divided into exposed and hidden seconds."""
        part_of_stage, stage_count = self.table.part_of_stage, len(self.table.part_of_stage)
        is_end = column(np.isin(np.arange(stage_count), (0, stage_count - 1)))
        # Rows 0 to 7: exposed and hidden seconds of each of the four communications; 8: of the update; 9: of the host.
        stage_columns = np.zeros((10, stage_count))
        for part, (model, part_times) in enumerate(zip(self.table.part_models, self.part_times, strict=True)):
            is_on_part = part_of_stage == part
            stage_cases = stages.alone(
                self.case, StageLayers(*(count[is_on_part] for count in self.stage_layers)), is_end[is_on_part]
            )
            # Seconds of a backward pass, under which gradient communication can be hidden.
            backward = sum(
                count[is_on_part] * kind.recompute_and_backward.seconds
                for count, kind in zip(self.layers_by_kind, part_times.kinds, strict=True)
            )
            once = step.once(stage_cases, model.hardware, model.values, np.asarray(backward))
            once_columns = (*(column for exposed in once[:4] for column in exposed), once.update_s, once.host_s)
            stage_columns[:, is_on_part] = [np.broadcast_to(value, int(is_on_part.sum())) for value in once_columns]
        all_reduce, exchange, gradient_copy, weight_copy = (Exposed(*stage_columns[at : at + 2]) for at in (0, 2, 4, 6))
        return Once(
            gradient_all_reduce=all_reduce,
            sharded_exchange=exchange,
            gradient_copy=gradient_copy,
            weight_copy=weight_copy,
            update_s=stage_columns[8],
            host_s=stage_columns[9],
        )

    @cached_property
    def memory(self) -> MemoryParts:
        """Bytes per rank of each stage."""
        depth = len(self.table.part_of_stage)
        return stages.memory(self.case, self.stage_layers, np.arange(depth, 0.0, -1), column(np.arange(depth) == 0))

    @property
    def stage_seconds(self) -> Column:
        """Seconds of a micro-batch on each stage, [stage], forward and backward, with its transfers."""
        layer_seconds = [
            seconds[self.row] * count
            for seconds, count in zip(self.table.layer_seconds, self.layers_by_kind, strict=True)
        ]
        return self.table.fixed_seconds[self.row] + sum(layer_seconds)

    @property
    def flow_seconds(self) -> float:
        """Approximate seconds of all micro-batches: the first passes through all stages, the others follow at the pace
        of the slowest. The objective of the partition of layers."""
        stage_seconds = self.stage_seconds
        return float((self.case.accumulate[0] - 1) * np.max(stage_seconds) + np.sum(stage_seconds))

    @property
    def step_seconds(self) -> float:
        """Approximate seconds of a step."""
        return self.flow_seconds + float(np.max(self.once_per_step.seconds))

    @cached_property
    def pipeline(self) -> PipelineTimes:
        """The input of the simulation: seconds of a micro-batch on each stage, forward and backward. The backward pass
        is not split, so all of it is in `inputs`, and `weights` are 0."""
        part_of_stage, times_of_part = self.table.part_of_stage, self.part_times
        # Each starts with half of the host's seconds per micro-batch.
        forward, backward = (np.array([times_of_part[part].host_s / 2 for part in part_of_stage]) for _ in range(2))
        for kind, count in enumerate(self.layers_by_kind):
            forward += count * np.array([float(times_of_part[part].kinds[kind].forward_s[0]) for part in part_of_stage])
            backward += count * np.array(
                [float(times_of_part[part].kinds[kind].backward_s[0]) for part in part_of_stage]
            )
        last_part_times = times_of_part[part_of_stage[-1]]
        forward[-1] += float((last_part_times.head_forward_s + last_part_times.loss_s)[0])
        backward[-1] += float(last_part_times.head_backward_s[0])
        hop_seconds = np.append(pipelines.hops(self.case, self.table.part_models, part_of_stage, times_of_part)[0], 0.0)
        micro_batches, depth = round(float(self.case.accumulate[0])), len(part_of_stage)
        return PipelineTimes(
            schedule="1f1b",
            ranks=depth,
            micro_batches=micro_batches,
            forward=forward,
            inputs=backward,
            weights=np.zeros(depth),
            hop=hop_seconds,
            waits=True,
        )


def cost_pipeline(
    pipeline: HeteroPipeline, simulated: SimulatedPipeline, job: Job, budget: TrainingBudget
) -> HeteroPipelineStep:
    """The cost of a step: its plan (ledger, prediction interval, memory), its bill (tokens/s, MFU, days, dollars), and
    times and memory of each stage. `simulated`: the simulation of `pipeline`. `job`: the job with the pipeline's
    layout. `budget`: with tokens, for days and dollars."""
    table, case, memory = pipeline.table, pipeline.case, pipeline.memory
    step_time = predict_step(pipeline, simulated)
    # Idle seconds of each stage: in warm-up, in the steady state, and from its end until the end of the step.
    idle_s = simulated.warmup + simulated.steady + step_time.wall - _stage_end_seconds(pipeline, simulated)
    reserved_bytes = memory.total * RESERVED
    device_bytes = np.array([float(table.part_models[part].hardware.memory[0]) for part in table.part_of_stage])
    fullest_stage = int(np.argmax(reserved_bytes / device_bytes))
    models_in_order = [table.part_models[part] for part in dict.fromkeys(table.part_of_stage.tolist())]
    parts = tuple(model.part for model in models_in_order)
    plan = _make_plan(pipeline, step_time, job, parts, memory, fullest_stage)
    peaks = [model.peak._replace(flops_per_s=model.peak.flops_per_s * model.part.ranks) for model in models_in_order]
    peak = ReferencePeak(
        sum(part_peak.flops_per_s for part_peak in peaks),
        " and ".join(dict.fromkeys(part_peak.dtype for part_peak in peaks)),
    )
    tokens, flops = float(job.recipe.tokens_per_step), float(step_cost.model_flops(case)[0])
    bill = step_cost.bill(
        [(part.machine, part.ranks) for part in parts],
        plan.ledger.wall_ns / 1e9,
        tokens=tokens,
        flops=flops,
        peak=peak,
        budget=budget,
        checkpoint_bytes=model_size.checkpoint_bytes(case),
    )
    first_layers = np.cumsum([0, *pipeline.layers_per_stage])
    return HeteroPipelineStep(
        choice=LayoutCost(plan=plan, bill=bill, reserved=int(reserved_bytes[fullest_stage]), host_bytes=0, front=False),
        order=parts,
        stages=tuple(
            HeteroStage(
                part=str(table.part_models[part].part),
                first=int(first_layers[stage]),
                layers=pipeline.layers_per_stage[stage],
                experts=int(pipeline.stage_layers.routed[stage]),
                forward_ns=round(pipeline.pipeline.forward[stage] * 1e9),
                backward_ns=round(pipeline.pipeline.inputs[stage] * 1e9),
                idle_ns=round(float(idle_s[stage]) * 1e9),
                reserved=int(reserved_bytes[stage]),
                memory=int(device_bytes[stage]),
            )
            for stage, part in enumerate(table.part_of_stage)
        ),
    )


def _make_plan(
    pipeline: HeteroPipeline,
    step_time: StepTime,
    job: Job,
    parts: Sequence[FleetPart],
    memory: MemoryParts,
    fullest: int,
) -> Plan:
    """The plan of a step: its ledger, an assumed prediction interval, and the memory of the
    stage `fullest`. `job`: the job with the pipeline's layout; `parts`: in the order of the pipeline; `memory`: bytes
    per rank of each stage."""
    models, depth = pipeline.table.part_models, len(pipeline.layers_per_stage)
    part_names = ", ".join(str(part) for part in parts)
    ledger = predicted_ledger.ledger(step_time, index=0, ranks=job.layout.ranks, source=part_names)
    interval = uncalibrated("no step of a mixed cluster was measured")
    low, high = interval.bounds(ledger.wall_ns)
    return Plan(
        job=job,
        ledger=ledger,
        low=low,
        high=high,
        uncalibrated_because=interval.uncalibrated_because,
        memory={name: int(np.broadcast_to(size, depth)[fullest]) for name, size in memory.parts().items()},
        assumptions=tuple(claim for model in models for claim in model.tuned.claims),
    )


def _stage_end_seconds(pipeline: HeteroPipeline, simulated: SimulatedPipeline) -> Column:
    """Time at which each stage has finished its once-per-step work, in seconds from the start of the step, [stage]."""
    return simulated.wall - simulated.drain + pipeline.once_per_step.seconds


def predict_step(pipeline: HeteroPipeline, simulated: SimulatedPipeline) -> StepTime:
    """The step time as the mean over stages, which all have the same number of ranks. `simulated`: the simulation of
    `pipeline`."""
    part_of_stage, once = pipeline.table.part_of_stage, pipeline.once_per_step
    stage_count = len(part_of_stage)
    # Factor from the seconds of one stage and micro-batch to the mean over stages of the seconds of all micro-batches.
    micro_batches_per_stage = pipeline.case.accumulate / stage_count
    host_seconds = np.zeros(1)
    end_seconds = _stage_end_seconds(pipeline, simulated)
    lines: list[AccountSeconds] = []
    for part, part_times in enumerate(pipeline.part_times):
        is_on_part = part_of_stage == part
        for kind, count in zip(part_times.kinds, pipeline.layers_by_kind, strict=True):
            lines += step.layer_accounts(kind, micro_batches_per_stage * np.sum(count[is_on_part]))
        host_seconds = host_seconds + micro_batches_per_stage * np.count_nonzero(is_on_part) * part_times.host_s
    # Means over stages of the simulated times; the drain also waits for the slowest once-per-step work.
    means = Means(*(np.atleast_1d(np.mean(getattr(simulated, name))) for name in Means._fields))
    means = means._replace(drain=np.atleast_1d(np.max(end_seconds) - np.mean(end_seconds)))
    lines += step.outside_layers(
        pipeline.part_times[part_of_stage[-1]], micro_batches_per_stage, once.mean, means, host_seconds
    )
    return StepTime(np.atleast_1d(np.max(end_seconds)), lines)
