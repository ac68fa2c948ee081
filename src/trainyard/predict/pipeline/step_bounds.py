"""What the stages of a pipeline take of a micro-batch, and the least that its step can: no schedule is below that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.pipeline import partition, schedules
from trainyard.predict.pipeline.partition import Division
from trainyard.predict.pipeline.simulation import PipelineTimes
from trainyard.predict.time import collective_time, data_parallel, shapes
from trainyard.predict.time.data_parallel import Sharded
from trainyard.predict.time.layer import Phase, head, layer, recomputed


class LayerKind(NamedTuple):
    """Layers that are alike: how many the model has of them and before them, and what one takes of a micro-batch.

    `through`: backward and what is done again for it, launched as one: the host may fall behind in one and catch up.
    `ahead`, `back`: seconds of both passes, with what they wait for gathered weights.
    """

    count: Column
    before: Column
    forward: Phase
    again: Phase
    backward: Phase
    through: Phase
    sharded: Sharded
    ahead: Column
    back: Column

    @property
    def late(self) -> Column:
        """Of `back`: for the gradients of weights, which need as many FLOPs as those of what went in."""
        return self.through.seconds * self.backward.matmul / 2 / self.through.device

    def within(self, start: Column, end: Column) -> Column:
        """How many are among the layers from `start` to `end`."""
        return np.clip(end - self.before, 0, self.count) - np.clip(start - self.before, 0, self.count)


class Parts(NamedTuple):
    """Seconds of a micro-batch. `ahead`, `back`: of the head, the loss with what is ahead; `hop`: from one rank to the
    next; `beside`: that the host takes on each rank."""

    kinds: Sequence[LayerKind]
    ahead: Column
    back: Column
    loss: Column
    hop: Column
    beside: float


def parts(cases: Cases, hardware: RankHardware, tuned: Constants) -> Parts:
    ahead, back, loss = head(cases, hardware, tuned)
    size = cases.tokens * cases.width * cases.width_bytes / cases.tp  # each rank of tp sends its part
    hop = collective_time.send(hardware, tuned, size, cases.tp * cases.cp * cases.dp)
    kinds = [_kind(some, count, before, hardware, tuned) for some, count, before in _alike(cases)]
    return Parts(kinds, ahead, back, loss, np.where(cases.pp > 1, hop, 0.0), tuned.microbatch_s)


def _alike(cases: Cases) -> Iterator[tuple[Cases, Column, Column]]:
    """Cases of layers of one kind each, dense ones first; how many there are, and before them."""
    dense, routed = shapes.layer_kinds(cases)
    mixed = (cases.spaces > 0).any()  # whose kinds alternate: each stage has the mean of them
    if mixed or not ((dense > 0) & (routed > 0)).any():
        yield cases, cases.layers, np.zeros(1)
        return
    yield replace(cases, dense_layers=cases.layers), dense, np.zeros(1)
    yield replace(cases, dense_layers=np.zeros(1)), routed, dense


def _kind(cases: Cases, count: Column, before: Column, hardware: RankHardware, tuned: Constants) -> LayerKind:
    forward, backward = layer(cases, hardware, tuned)
    again = recomputed(cases, forward)
    through = again.plus(backward)
    sharded = data_parallel.sharded(cases, hardware, tuned, forward.seconds, through.seconds)
    ahead, back = forward.seconds + sharded.ahead, through.seconds + sharded.back
    return LayerKind(count, before, forward, again, backward, through, sharded, ahead, back)


def alone(cases: Cases, parts: Parts) -> Column:
    """Seconds that the micro-batches take on one rank that does all of them."""
    layers = sum((kind.count * (kind.ahead + kind.back) for kind in parts.kinds), np.zeros(1))
    return cases.accumulate * (layers + parts.ahead + parts.back + parts.loss + parts.beside)


def bound(cases: Cases, parts: Parts) -> Column:
    """Seconds that its micro-batches take at least: before a rank begins the first has passed all stages before it, and
    when it is done the last goes back through them; in between it has its own work. So it is of every rank; asked are
    the first, the last two and the last of those with most layers. Without a pipeline it is what they take."""
    if np.max(cases.pp) == 1:
        return alone(cases, parts)
    stages = partition.divided(cases.layers, cases.pp * cases.interleave, cases.ends)
    most = np.mod(stages.rest - 1, cases.pp)
    ranks = (np.zeros(1), np.maximum(cases.pp - 2, 0), cases.pp - 1, most)
    return np.maximum.reduce([_of_rank(cases, parts, stages, rank) for rank in ranks])


def _of_rank(cases: Cases, parts: Parts, stages: Division, rank: Column) -> Column:
    splits, waits, v = (
        schedules.among(cases.schedule, names) for names in (schedules.SPLIT, schedules.ONE_STAGE, schedules.V_SHAPED)
    )
    # Who splits its backward pass may do weights' gradients last, when all others are done.
    hops = np.where(splits, rank, np.where(waits, np.maximum(2 * rank - 1, 0), 2 * rank))
    fill = hops * parts.hop + np.where(splits, 0.5, 1.0) * rank * parts.beside / cases.interleave
    received = np.where(waits, (rank > 0) * 1.0 + (rank < cases.pp - 1), 0.0)
    head = np.where(rank == np.where(v, 0, cases.pp - 1), parts.ahead + parts.back + parts.loss, 0.0)
    busy = parts.beside + received * parts.hop + head
    mine: list[tuple[Column, Column, Column]] = []
    for chunk in range(int(np.max(cases.interleave))):
        up = v if chunk else np.zeros(1, bool)
        stage = np.where(up, 2 * cases.pp - 1 - rank, rank + chunk * cases.pp)
        mine.append((stages.before(stage), stages.before(stage + 1), np.where(chunk < cases.interleave, 1.0, 0.0)))
    for kind in parts.kinds:
        passed = kind.within(np.zeros(1), stages.before(rank))
        fill = fill + passed * (kind.ahead + np.where(splits, 0.0, kind.back))
        here = sum((there * kind.within(start, end) for start, end, there in mine), np.zeros(1))
        busy = busy + here * (kind.ahead + kind.back)
    return fill + cases.accumulate * busy


def pipelines(cases: Cases, parts: Parts) -> list[PipelineTimes]:
    """One a case."""
    count = len(cases)

    def rows(column: Column) -> Column:
        return np.broadcast_to(column, count)

    shape = (cases.schedule, cases.pp, cases.interleave, cases.layers, cases.ends, cases.accumulate)
    ends = (parts.ahead + parts.loss, parts.back, parts.hop)
    kinds = [(kind.count, kind.before, kind.ahead, kind.back, kind.late) for kind in parts.kinds]
    table = np.stack([rows(column) for column in (*shape, *ends)], axis=1).tolist()
    alike = [np.stack([rows(column) for column in kind], axis=1).tolist() for kind in kinds]
    return [_pipeline(line, of, parts.beside) for line, of in zip(table, zip(*alike, strict=True), strict=True)]


def _pipeline(line: Sequence[float], kinds: Sequence[Sequence[float]], beside: float) -> PipelineTimes:
    schedule, pp, interleave, layers, ends, micro_batches, ahead, behind, hop = line
    stages, name = round(pp * interleave), schedules.SCHEDULES[round(schedule)]
    starts = partition.divided(layers, stages, ends).before(np.arange(stages + 1.0))
    forward, back, late = np.full((3, stages), beside / interleave / 2) * [[1], [1], [0]]
    for count, before, *seconds in kinds:
        many = np.diff(np.clip(starts - before, 0, count))
        for column, each in zip((forward, back, late), seconds, strict=True):
            column += many * each
    forward[-1], back[-1], late[-1] = forward[-1] + ahead, back[-1] + behind, late[-1] + behind / 2
    late[0] = back[0]  # torch does all of it then: nobody waits for what the first stage hands back
    return PipelineTimes(
        name, round(pp), round(micro_batches), forward, back - late, late, hop, name in schedules.ONE_STAGE
    )
