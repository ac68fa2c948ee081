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
from trainyard.predict.time.layer import Phase, head, layer, time_recomputation


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
    """Seconds of a micro-batch's parts on each case."""
    ahead, back, loss = head(cases, hardware, tuned)
    hop_bytes = cases.tokens * cases.width * cases.width_bytes / cases.tp  # each rank of tp sends its part
    hop_seconds = collective_time.send(hardware, tuned, hop_bytes, cases.tp * cases.cp * cases.dp)
    kinds = [
        _layer_kind_times(kind_cases, count, before, hardware, tuned)
        for kind_cases, count, before in _split_by_kind(cases)
    ]
    return Parts(
        kinds=kinds,
        ahead=ahead,
        back=back,
        loss=loss,
        hop=np.where(cases.pp > 1, hop_seconds, 0.0),
        beside=tuned.microbatch_s,
    )


def _split_by_kind(cases: Cases) -> Iterator[tuple[Cases, Column, Column]]:
    """Cases with layers of one kind each, dense ones first; the number of these layers, and of layers before them."""
    dense, routed = shapes.layer_kinds(cases)
    mixed = (cases.spaces > 0).any()  # a hybrid's kinds alternate: each stage has their mean
    if mixed or not ((dense > 0) & (routed > 0)).any():
        yield cases, cases.layers, np.zeros(1)
        return
    yield replace(cases, dense_layers=cases.layers), dense, np.zeros(1)
    yield replace(cases, dense_layers=np.zeros(1)), routed, dense


def _layer_kind_times(
    cases: Cases, count: Column, before: Column, hardware: RankHardware, tuned: Constants
) -> LayerKind:
    """The times of one layer of the kind that all layers of `cases` have. `count`: layers of this kind in the model;
    `before`: layers before them."""
    forward, backward = layer(cases, hardware, tuned)
    again = time_recomputation(cases, forward)
    through = again.plus(backward)
    sharded = data_parallel.sharded(cases, hardware, tuned, forward.seconds, through.seconds)
    ahead, back = forward.seconds + sharded.ahead, through.seconds + sharded.back
    return LayerKind(
        count=count,
        before=before,
        forward=forward,
        again=again,
        backward=backward,
        through=through,
        sharded=sharded,
        ahead=ahead,
        back=back,
    )


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
    return np.maximum.reduce([_rank_bound(cases, parts, stages, rank) for rank in ranks])


def _rank_bound(cases: Cases, parts: Parts, stages: StagePartition, rank: Column) -> Column:
    """Lower bound of the seconds of all micro-batches by one rank's work: the first micro-batch passes the ranks before
    it, and then the rank does its own work for each. `rank`: its number in each case, from 0."""
    splits_backward, waits_for_transfers, is_v_shaped = (
        schedules.among(cases.schedule, names) for names in (schedules.SPLIT, schedules.ONE_STAGE, schedules.V_SHAPED)
    )
    # Schedules that split the backward pass may end with the gradients of weights, when all other ranks are done.
    hops = np.where(splits_backward, rank, np.where(waits_for_transfers, np.maximum(2 * rank - 1, 0), 2 * rank))
    fill_s = hops * parts.hop + np.where(splits_backward, 0.5, 1.0) * rank * parts.beside / cases.interleave
    transfers_received = np.where(waits_for_transfers, (rank > 0) * 1.0 + (rank < cases.pp - 1), 0.0)
    head_s = np.where(rank == np.where(is_v_shaped, 0, cases.pp - 1), parts.ahead + parts.back + parts.loss, 0.0)
    busy_s = parts.beside + transfers_received * parts.hop + head_s
    rank_stages: list[tuple[Column, Column, Column]] = []
    for chunk in range(int(np.max(cases.interleave))):
        is_second_half = is_v_shaped if chunk else np.zeros(1, bool)
        stage = np.where(is_second_half, 2 * cases.pp - 1 - rank, rank + chunk * cases.pp)
        rank_stages.append(
            (stages.before(stage), stages.before(stage + 1), np.where(chunk < cases.interleave, 1.0, 0.0))
        )
    for kind in parts.kinds:
        previous_layers = kind.within(np.zeros(1), stages.before(rank))
        fill_s = fill_s + previous_layers * (kind.ahead + np.where(splits_backward, 0.0, kind.back))
        own_layers = sum((exists * kind.within(start, end) for start, end, exists in rank_stages), np.zeros(1))
        busy_s = busy_s + own_layers * (kind.ahead + kind.back)
    return fill_s + cases.accumulate * busy_s


def pipelines(cases: Cases, parts: Parts) -> list[PipelineTimes]:
    """The input of the simulation for each case."""
    count = len(cases)

    def by_case(column: Column) -> Column:
        return np.broadcast_to(column, count)

    shape_columns = (cases.schedule, cases.pp, cases.interleave, cases.layers, cases.ends, cases.accumulate)
    end_columns = (parts.ahead + parts.loss, parts.back, parts.hop)
    kind_columns = [(kind.count, kind.before, kind.ahead, kind.back, kind.late) for kind in parts.kinds]
    case_rows = np.stack([by_case(column) for column in (*shape_columns, *end_columns)], axis=1).tolist()
    kind_rows = [np.stack([by_case(column) for column in kind], axis=1).tolist() for kind in kind_columns]
    return [
        _pipeline_times(case_row, kinds_of_case, parts.beside)
        for case_row, kinds_of_case in zip(case_rows, zip(*kind_rows, strict=True), strict=True)
    ]


def _pipeline_times(case_row: Sequence[float], kinds: Sequence[Sequence[float]], host_s: float) -> PipelineTimes:
    """One case's seconds by stage. `case_row`: schedule, pp, interleave, layers, ends, micro-batches, and seconds of
    the head's forward pass with the loss, the head's backward pass and a transfer; `kinds`: for each kind of layer,
    their count, the layers before them, and seconds of a layer's forward pass, backward pass, and the part of the
    latter for the gradients of weights."""
    schedule, pp, interleave, layers, ends, micro_batches, head_forward, head_backward, hop = case_row
    stages, name = round(pp * interleave), schedules.SCHEDULES[round(schedule)]
    layers_before = partition.divided(layers, stages, ends).before(np.arange(stages + 1.0))
    forward, backward, weights = np.full((3, stages), host_s / interleave / 2) * [[1], [1], [0]]
    for count, before, *seconds in kinds:
        layers_of_stage = np.diff(np.clip(layers_before - before, 0, count))
        for stage_s, layer_s in zip((forward, backward, weights), seconds, strict=True):
            stage_s += layers_of_stage * layer_s
    forward[-1], backward[-1], weights[-1] = (
        forward[-1] + head_forward,
        backward[-1] + head_backward,
        weights[-1] + head_backward / 2,
    )
    weights[0] = backward[0]  # torch does not split it there: no rank waits for the first stage's gradients of inputs
    return PipelineTimes(
        schedule=name,
        ranks=round(pp),
        micro_batches=round(micro_batches),
        forward=forward,
        inputs=backward - weights,
        weights=weights,
        hop=hop,
        waits=name in schedules.ONE_STAGE,
    )
