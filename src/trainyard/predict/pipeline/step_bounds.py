"""Seconds of a micro-batch on the stages of a pipeline, and a lower bound of the step under any schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.pipeline import partition, schedules
from trainyard.predict.pipeline.partition import StagePartition
from trainyard.predict.pipeline.simulation import PipelineTimes
from trainyard.predict.time import collective_time, data_parallel, shapes
from trainyard.predict.time.data_parallel import Sharded
from trainyard.predict.time.layer import Phase, head, layer, recomputed


class LayerKind(NamedTuple):
    """Equal layers: `count` of them in the model and `before` them, and the times of one for a micro-batch.

    `through`: recomputation and backward pass together: the host may fall behind in one and catch up in the other.
    `ahead`, `back`: seconds of the forward and backward pass, with the exposed communication of sharded weights.
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
        """The part of `back` for the gradients of weights, which need as many FLOPs as those of inputs."""
        return self.through.seconds * self.backward.matmul / 2 / self.through.device

    def within(self, start: Column, end: Column) -> Column:
        """Number of these layers among the layers from `start` to `end`."""
        return np.clip(end - self.before, 0, self.count) - np.clip(start - self.before, 0, self.count)


class Parts(NamedTuple):
    """Seconds of a micro-batch. `ahead`, `back`: the head's forward and backward pass; `loss`: the loss and its
    gradient; `hop`: a transfer from one rank to the next; `beside`: host time on each rank outside the layers."""

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
    kinds = [_kind(kind_cases, count, before, hardware, tuned) for kind_cases, count, before in _split_by_kind(cases)]
    return Parts(kinds, ahead, back, loss, np.where(cases.pp > 1, hop, 0.0), tuned.microbatch_s)


def _split_by_kind(cases: Cases) -> Iterator[tuple[Cases, Column, Column]]:
    """Cases with layers of one kind each, dense ones first; the number of these layers, and of layers before them."""
    dense, routed = shapes.layer_kinds(cases)
    mixed = (cases.spaces > 0).any()  # a hybrid's kinds alternate: each stage has their mean
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
    """Seconds of all micro-batches on a single stage."""
    layers = sum((kind.count * (kind.ahead + kind.back) for kind in parts.kinds), np.zeros(1))
    return cases.accumulate * (layers + parts.ahead + parts.back + parts.loss + parts.beside)


def bound(cases: Cases, parts: Parts) -> Column:
    """Lower bound of the seconds of all micro-batches; exact without a pipeline. Before a rank begins, the first
    micro-batch has passed all previous stages; after it ends, the last one passes back through them; in between the
    rank has its own work. The bound is the maximum over the first rank, the last two, and the last rank with most
    layers."""
    if np.max(cases.pp) == 1:
        return alone(cases, parts)
    stages = partition.divided(cases.layers, cases.pp * cases.interleave, cases.ends)
    most = np.mod(stages.rest - 1, cases.pp)
    ranks = (np.zeros(1), np.maximum(cases.pp - 2, 0), cases.pp - 1, most)
    return np.maximum.reduce([_of_rank(cases, parts, stages, rank) for rank in ranks])


def _of_rank(cases: Cases, parts: Parts, stages: StagePartition, rank: Column) -> Column:
    splits, waits, v = (
        schedules.among(cases.schedule, names) for names in (schedules.SPLIT, schedules.ONE_STAGE, schedules.V_SHAPED)
    )
    # Schedules that split the backward pass may end with the gradients of weights, when all other ranks are done.
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
    """The input of the simulation for each case."""
    count = len(cases)

    def rows(column: Column) -> Column:
        return np.broadcast_to(column, count)

    shape = (cases.schedule, cases.pp, cases.interleave, cases.layers, cases.ends, cases.accumulate)
    ends = (parts.ahead + parts.loss, parts.back, parts.hop)
    kinds = [(kind.count, kind.before, kind.ahead, kind.back, kind.late) for kind in parts.kinds]
    table = np.stack([rows(column) for column in (*shape, *ends)], axis=1).tolist()
    by_kind = [np.stack([rows(column) for column in kind], axis=1).tolist() for kind in kinds]
    return [
        _pipeline(line, of_case, parts.beside) for line, of_case in zip(table, zip(*by_kind, strict=True), strict=True)
    ]


def _pipeline(line: Sequence[float], kinds: Sequence[Sequence[float]], host_s: float) -> PipelineTimes:
    schedule, pp, interleave, layers, ends, micro_batches, ahead, behind, hop = line
    stages, name = round(pp * interleave), schedules.SCHEDULES[round(schedule)]
    starts = partition.divided(layers, stages, ends).before(np.arange(stages + 1.0))
    forward, back, late = np.full((3, stages), host_s / interleave / 2) * [[1], [1], [0]]
    for count, before, *seconds in kinds:
        layers_of_stage = np.diff(np.clip(starts - before, 0, count))
        for column, each in zip((forward, back, late), seconds, strict=True):
            column += layers_of_stage * each
    forward[-1], back[-1], late[-1] = forward[-1] + ahead, back[-1] + behind, late[-1] + behind / 2
    late[0] = back[0]  # torch does not split it there: no rank waits for the first stage's gradients of inputs
    return PipelineTimes(
        name, round(pp), round(micro_batches), forward, back - late, late, hop, name in schedules.ONE_STAGE
    )
