"""A step of one pipeline over unlike parts, its layers divided: what each stage takes and holds, account by account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from trainyard.job import Job
from trainyard.plan import Plan
from trainyard.predict.economics import step_cost
from trainyard.predict.hetero import pipelines
from trainyard.predict.hetero.fleet import FleetPart
from trainyard.predict.hetero.pipelines import Lines
from trainyard.predict.inputs.cases import Cases, Column, column
from trainyard.predict.inputs.layout_space import AXES
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
    """`part`: of the cluster, as `h100:64`; `layers` from `first` on, of which the last `experts` have experts.
    `forward_ns`, `backward_ns`: of a micro-batch; `idle_ns`: of a step. `reserved` of the device's `memory`: bytes."""

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
    """A pipeline over the parts in their order, stage by stage. The choice's memory is that of the fullest stage."""

    choice: LayoutCost
    order: tuple[FleetPart, ...]
    stages: tuple[HeteroStage, ...]


@dataclass(frozen=True, kw_only=True)
class HeteroPipeline:
    """A case of `line`, and how many layers each stage has."""

    line: Lines
    row: int
    counts: tuple[int, ...]

    @cached_property
    def case(self) -> Cases:
        return self.line.cases.take(np.array([self.row]))

    @property
    def axes(self) -> dict[str, int]:
        """Its row of the space."""
        return {axis: round(float(getattr(self.case, axis)[0])) for axis in AXES}

    @cached_property
    def run(self) -> StageLayers:
        """Layers of each stage by kind."""
        ends, dense = np.cumsum(self.counts), self.line.counts[0] if self.plain else 0
        plain = np.diff(np.minimum(ends, dense), prepend=0)
        return StageLayers(plain.astype(np.float64), np.array(self.counts) - plain.astype(np.float64))

    @property
    def plain(self) -> bool:
        """Whether the model's first layers have no experts."""
        return len(self.line.counts) > 1 or not float(self.case.experts[0])

    @cached_property
    def many(self) -> list[Column]:
        """By kind of layer of the model: how many each stage has."""
        return [count for count in self.run if count.any()]

    @cached_property
    def parts(self) -> list[Parts]:
        """What a micro-batch takes on each part of the cluster."""
        return [step_bounds.parts(self.case, one.hardware, one.values) for one in self.line.where]

    @cached_property
    def once(self) -> Once:
        """What comes once a step, on each stage."""
        of, depth = self.line.of, len(self.line.of)
        ends = column(np.isin(np.arange(depth), (0, depth - 1)))
        found = np.zeros((10, depth))
        for place, (one, parts) in enumerate(zip(self.line.where, self.parts, strict=True)):
            mine = of == place
            like = stages.alone(self.case, StageLayers(*(count[mine] for count in self.run)), ends[mine])
            back = sum(many[mine] * kind.through.seconds for many, kind in zip(self.many, parts.kinds, strict=True))
            each = step.once(like, one.hardware, one.values, np.asarray(back))
            flat = (*(column for part in each[:4] for column in part), each.update, each.host)
            found[:, mine] = [np.broadcast_to(value, int(mine.sum())) for value in flat]
        summed, divided, down, up = (Exposed(*found[at : at + 2]) for at in (0, 2, 4, 6))
        return Once(summed, divided, down, up, found[8], found[9])

    @cached_property
    def held(self) -> MemoryParts:
        """By a rank of each stage."""
        depth = len(self.line.of)
        return stages.memory(self.case, self.run, np.arange(depth, 0.0, -1), column(np.arange(depth) == 0))

    @property
    def each(self) -> Column:
        """Seconds of a micro-batch on each stage, there and back, with what it receives."""
        layers = [seconds[self.row] * many for seconds, many in zip(self.line.each, self.many, strict=True)]
        return self.line.fixed[self.row] + sum(layers)

    @property
    def flow(self) -> float:
        """About the seconds of all micro-batches: the first through all stages, the others at the pace of the slowest.
        What layers are divided by."""
        return float((self.case.accumulate[0] - 1) * np.max(self.each) + np.sum(self.each))

    @property
    def seconds(self) -> float:
        """About those of a step."""
        return self.flow + float(np.max(self.once.seconds))

    @cached_property
    def pipeline(self) -> PipelineTimes:
        of = self.line.of
        forward, back = (np.array([self.parts[one].beside / 2 for one in of]) for _ in range(2))
        for kind, many in enumerate(self.many):
            forward += many * np.array([float(self.parts[one].kinds[kind].ahead[0]) for one in of])
            back += many * np.array([float(self.parts[one].kinds[kind].back[0]) for one in of])
        last = self.parts[of[-1]]
        forward[-1] += float((last.ahead + last.loss)[0])
        back[-1] += float(last.back[0])
        sent = np.append(pipelines.hops(self.case, self.line.where, of, self.parts)[0], 0.0)
        many = round(float(self.case.accumulate[0]))
        return PipelineTimes("1f1b", len(of), many, forward, back, np.zeros(len(of)), sent, waits=True)


def cost_pipeline(one: HeteroPipeline, ran: SimulatedPipeline, job: Job, budget: float) -> HeteroPipelineStep:
    """`ran`: its pipeline."""
    line, case, held = one.line, one.case, one.held
    step_of = predicted(one, ran)
    idle = ran.warmup + ran.steady + step_of.wall - _ends(one, ran)
    reserved = held.total * RESERVED
    limits = np.array([float(line.where[place].hardware.memory[0]) for place in line.of])
    fullest = int(np.argmax(reserved / limits))
    order = [line.where[place] for place in dict.fromkeys(line.of.tolist())]
    parts = tuple(where.part for where in order)
    plan = _plan(one, step_of, job, parts, held, fullest)
    peak = sum(float(where.hardware.peak[0]) * where.part.ranks for where in order)
    tokens, flops = float(job.recipe.tokens_per_step), float(step_cost.model_flops(case)[0])
    bill = step_cost.bill(
        [(part.machine, part.ranks) for part in parts], plan.ledger.wall_ns / 1e9, tokens, flops, peak, budget
    )
    firsts = np.cumsum([0, *one.counts])
    return HeteroPipelineStep(
        choice=LayoutCost(plan=plan, bill=bill, reserved=int(reserved[fullest]), waiting=0, front=False),
        order=parts,
        stages=tuple(
            HeteroStage(
                part=str(line.where[place].part),
                first=int(firsts[at]),
                layers=one.counts[at],
                experts=int(one.run.routed[at]),
                forward_ns=round(one.pipeline.forward[at] * 1e9),
                backward_ns=round(one.pipeline.inputs[at] * 1e9),
                idle_ns=round(float(idle[at]) * 1e9),
                reserved=int(reserved[at]),
                memory=int(limits[at]),
            )
            for at, place in enumerate(line.of)
        ),
    )


def _plan(
    one: HeteroPipeline, step_of: StepTime, job: Job, parts: Sequence[FleetPart], held: MemoryParts, fullest: int
) -> Plan:
    where = one.line.where
    ledger = predicted_ledger.ledger(step_of, 0, job.layout.ranks, ", ".join(str(part) for part in parts))
    kind = "experts" if float(one.case.experts[0]) else "dense"
    bounds = [each.tuned.interval(kind) for each in where]
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    return Plan(
        job=job,
        ledger=ledger,
        low=min(ledger.wall_ns, round(ledger.wall_ns * low)),
        high=max(ledger.wall_ns, round(ledger.wall_ns * high)),
        memory={part: int(np.broadcast_to(size, len(one.counts))[fullest]) for part, size in held.parts().items()},
        assumptions=tuple(claim for each in where for claim in each.tuned.claims),
    )


def _ends(one: HeteroPipeline, ran: SimulatedPipeline) -> Column:
    """When each stage is done with what comes once a step."""
    return ran.wall - ran.drain + one.once.seconds


def predicted(one: HeteroPipeline, ran: SimulatedPipeline) -> StepTime:
    """The mean over stages, which have as many ranks each. `ran`: its pipeline."""
    of, once, depth = one.line.of, one.once, len(one.line.of)
    times, host, ends = one.case.accumulate / depth, np.zeros(1), _ends(one, ran)
    found: list[AccountSeconds] = []
    for place, parts in enumerate(one.parts):
        mine = of == place
        for kind, many in zip(parts.kinds, one.many, strict=True):
            found += step.of_kind(kind, times * np.sum(many[mine]))
        host = host + times * np.count_nonzero(mine) * parts.beside
    means = Means(*(np.atleast_1d(np.mean(getattr(ran, name))) for name in Means._fields))
    means = means._replace(drain=np.atleast_1d(np.max(ends) - np.mean(ends)))
    found += step.outside_layers(one.parts[of[-1]], times, once.mean, means, host)
    return StepTime(np.atleast_1d(np.max(ends)), found)
