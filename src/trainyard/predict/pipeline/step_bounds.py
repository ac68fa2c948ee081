"""Seconds of a micro-batch on the stages of a pipeline, and a lower bound of the step under any schedule.

A case is one layout of a job; a column has a value per case, of shape [case]. The kinds of layers are dense ones and
those with experts. A chunk is one stage of a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.memory import activation_offload
from trainyard.predict.pipeline import partition, schedules
from trainyard.predict.pipeline.partition import StagePartition
from trainyard.predict.pipeline.simulation import PipelineTimes
from trainyard.predict.time import collective_time, data_parallel, dispatch_overlap, offload, shapes
from trainyard.predict.time.data_parallel import Exposed, Sharded
from trainyard.predict.time.layer import Phase, head, layer
from trainyard.predict.time.recomputation import time_recomputation


class LayerKind(NamedTuple):
    """Equal layers: `count` of them in the model after `layers_before` others, and the times of one for a micro-batch.

    `recompute_and_backward`: both together, since the host may fall behind in one and catch up in the other.
    `activations_out`, `activations_back`: copies of offloaded activations to the host in the forward pass, and to the
    device in the backward pass. `forward_s`, `backward_s` (with recomputation): seconds including these and the exposed
    communication of sharded weights.
    """

    count: Column
    layers_before: Column
    forward: Phase
    recomputation: Phase
    backward: Phase
    recompute_and_backward: Phase
    sharded: Sharded
    activations_out: Exposed
    activations_back: Exposed
    forward_s: Column
    backward_s: Column

    @property
    def weight_gradient_s(self) -> Column:
        """The part of `backward_s` for the gradients of weights, which need as many FLOPs as those of inputs."""
        return self.recompute_and_backward.seconds * self.backward.matmul / 2 / self.recompute_and_backward.device

    def within(self, start: Column, end: Column) -> Column:
        """Number of these layers among the layers from `start` to `end` (exclusive), counted in the whole model."""
        return np.clip(end - self.layers_before, 0, self.count) - np.clip(start - self.layers_before, 0, self.count)


class Parts(NamedTuple):
    """Seconds of a micro-batch. `head_forward_s`, `head_backward_s`: the language model's head; `loss_s`: the loss and
    its gradient; `ends`: communication of sharded embeddings and heads; `transfer_s`: from one rank to the next;
    `host_s`: host time on each rank outside the layers."""

    kinds: Sequence[LayerKind]
    head_forward_s: Column
    head_backward_s: Column
    loss_s: Column
    ends: Sharded
    transfer_s: Column
    host_s: float

    @property
    def single_stage_s(self) -> Column:
        """Seconds outside the layers on a single stage."""
        head_s = self.head_forward_s + self.head_backward_s + self.loss_s
        return head_s + self.ends.forward_s + self.ends.backward_s + self.host_s


def parts(cases: Cases, hardware: RankHardware, tuned: Constants) -> Parts:
    """Seconds of a micro-batch in each kind of layer, the head, the loss and a transfer, in each case."""
    head_forward_s, head_backward_s, loss_s = head(cases, hardware, tuned)
    hop_bytes = cases.tokens * cases.width * cases.width_bytes / cases.tp  # each rank of tp sends its part
    stage_ranks = cases.tp * cases.cp * cases.dp
    transfer_s = collective_time.send(hardware, tuned, hop_bytes, stage_ranks, span=stage_ranks * cases.pp)
    kinds = [
        _layer_kind_times(kind_cases, count, before, hardware, tuned)
        for kind_cases, count, before in _split_by_kind(cases)
    ]
    last = kinds[-1]
    ends = data_parallel.sharded_ends(cases, hardware, tuned, last.forward.seconds, last.recompute_and_backward.seconds)
    return Parts(
        kinds=kinds,
        head_forward_s=head_forward_s,
        head_backward_s=head_backward_s,
        loss_s=loss_s,
        ends=ends,
        transfer_s=np.where(cases.pp > 1, transfer_s, 0.0),
        host_s=tuned.microbatch_s,
    )


def bound_parts(parts: Parts, rows: npt.NDArray[np.intp], count: int) -> Parts:
    """The parts of the cases `rows`, as far as `bound` needs them. `count`: the number of cases of `parts`."""

    def take(column: Column) -> Column:
        return np.broadcast_to(column, count)[rows]

    kinds = [
        kind._replace(
            count=take(kind.count),
            layers_before=take(kind.layers_before),
            forward_s=take(kind.forward_s),
            backward_s=take(kind.backward_s),
        )
        for kind in parts.kinds
    ]
    return parts._replace(
        kinds=kinds,
        head_forward_s=take(parts.head_forward_s),
        head_backward_s=take(parts.head_backward_s),
        loss_s=take(parts.loss_s),
        ends=data_parallel.NOT_SHARDED,  # a pipeline exchanges them once per step
        transfer_s=take(parts.transfer_s),
    )


def _split_by_kind(cases: Cases) -> Iterator[tuple[Cases, Column, Column]]:
    """(cases, number of layers, layers before them) for each kind of layer, dense ones first. The cases have layers of
    that kind only."""
    dense, routed = shapes.layer_kinds(cases)
    mixed = (cases.space_layers > 0).any()  # a hybrid's kinds alternate: each stage has their mean
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
    recomputation = time_recomputation(cases, hardware, tuned, forward)
    if (cases.overlaps_dispatch > 0).any():
        forward, backward = dispatch_overlap.overlap(cases, tuned, forward, recomputation, backward)
    recompute_and_backward = recomputation.plus(backward)
    sharded = data_parallel.sharded(cases, hardware, tuned, forward.seconds, recompute_and_backward.seconds)
    copied_bytes = activation_offload.layer_bytes(cases)
    copy_s = np.where(copied_bytes > 0, offload.copy_seconds(hardware, tuned, copied_bytes), 0.0)
    activations_out = data_parallel.overlap(tuned, copy_s, forward.seconds)
    activations_back = data_parallel.overlap(tuned, copy_s, recompute_and_backward.seconds)
    return LayerKind(
        count=count,
        layers_before=before,
        forward=forward,
        recomputation=recomputation,
        backward=backward,
        recompute_and_backward=recompute_and_backward,
        sharded=sharded,
        activations_out=activations_out,
        activations_back=activations_back,
        forward_s=forward.seconds + sharded.forward_s + activations_out.seconds,
        backward_s=recompute_and_backward.seconds + sharded.backward_s + activations_back.seconds,
    )


def least_layer_seconds(cases: Cases, hardware: RankHardware, tuned: Constants) -> list[tuple[Column, Column]]:
    """(number of layers, at least the seconds of one for a micro-batch's forward and backward pass) of each kind of
    layer: without recomputation, the communication of data parallelism, and dispatch that may be overlapped."""
    kinds: list[tuple[Column, Column]] = []
    for kind_cases, count, _ in _split_by_kind(cases):
        phases = layer(kind_cases, hardware, tuned)
        if (cases.overlaps_dispatch > 0).any():
            phases = [phase._replace(dispatch=np.zeros(1)) for phase in phases]
        kinds.append((count, sum((phase.seconds for phase in phases), np.zeros(1))))
    return kinds


def alone(cases: Cases, parts: Parts) -> Column:
    """Seconds of all micro-batches of a step on a single stage."""
    layers_s = sum((kind.count * (kind.forward_s + kind.backward_s) for kind in parts.kinds), np.zeros(1))
    return cases.accumulate * (layers_s + parts.single_stage_s)


def bound(cases: Cases, parts: Parts) -> Column:
    """Lower bound of the seconds of all micro-batches of a step; exact without a pipeline. Before a rank begins, the
    first micro-batch has passed all previous stages; after it ends, the last one passes back through them; in between
    the rank has its own work. The bound is the maximum over the first rank, the last two, and the last rank with most
    layers."""
    if np.max(cases.pp) == 1:
        return alone(cases, parts)
    stages = partition.divided(cases.layers, cases.pp * cases.interleave, cases.first_less, cases.last_less)
    # The rank of the last of the first `rest` stages, which have one layer more; stage s is on rank s % pp.
    rank_with_most_layers = np.mod(stages.rest - 1, cases.pp)
    ranks = (np.zeros(1), np.maximum(cases.pp - 2, 0), cases.pp - 1, rank_with_most_layers)
    return np.maximum.reduce([_rank_bound(cases, parts, stages, rank) for rank in ranks])


def _rank_bound(cases: Cases, parts: Parts, stages: StagePartition, rank: Column) -> Column:
    """Lower bound of the seconds of all micro-batches by one rank's work: the first micro-batch passes the ranks before
    it (`fill_s`), and then the rank does its own work (`busy_s`) for each. `stages`: the layers of each stage; `rank`:
    its number in each case, from 0. If a schedule splits the backward pass, only the forward pass, which has half of
    the host's time, counts towards `fill_s`."""
    splits_backward, waits_for_transfers, is_v_shaped = (
        schedules.among(cases.schedule, names) for names in (schedules.SPLIT, schedules.ONE_STAGE, schedules.V_SHAPED)
    )
    # Schedules that split the backward pass may end with the gradients of weights, when all other ranks are done.
    transfers = np.where(splits_backward, rank, np.where(waits_for_transfers, np.maximum(2 * rank - 1, 0), 2 * rank))
    fill_s = transfers * parts.transfer_s + np.where(splits_backward, 0.5, 1.0) * rank * parts.host_s / cases.interleave
    transfers_received = np.where(waits_for_transfers, (rank > 0) * 1.0 + (rank < cases.pp - 1), 0.0)
    head_s = np.where(
        rank == np.where(is_v_shaped, 0, cases.pp - 1), parts.head_forward_s + parts.head_backward_s + parts.loss_s, 0.0
    )
    busy_s = (
        parts.host_s + transfers_received * parts.transfer_s + head_s + parts.ends.forward_s + parts.ends.backward_s
    )
    # (first layer, end, 1 if the rank has it) of each stage of the rank: V-shaped schedules return up the ranks.
    rank_stages: list[tuple[Column, Column, Column]] = []
    for chunk in range(int(np.max(cases.interleave))):
        is_second_half = is_v_shaped if chunk else np.zeros(1, bool)
        stage = np.where(is_second_half, 2 * cases.pp - 1 - rank, rank + chunk * cases.pp)
        rank_stages.append(
            (stages.before(stage), stages.before(stage + 1), np.where(chunk < cases.interleave, 1.0, 0.0))
        )
    for kind in parts.kinds:
        previous_layers = kind.within(np.zeros(1), stages.before(rank))
        fill_s = fill_s + previous_layers * (kind.forward_s + np.where(splits_backward, 0.0, kind.backward_s))
        own_layers = sum((exists * kind.within(start, end) for start, end, exists in rank_stages), np.zeros(1))
        busy_s = busy_s + own_layers * (kind.forward_s + kind.backward_s)
    return fill_s + cases.accumulate * busy_s


class StageTimes(NamedTuple):
    """Seconds of a micro-batch on the stages of one case, by origin. The rows of each array are the forward pass, the
    backward pass, and the part of the latter for the gradients of weights. `layers`: [row, stage]; `head`: [row], of
    the head and the loss, on the last stage; `host`: [row], host time outside the layers, equal on each stage; `hop`: a
    transfer; `layer_counts`: layers of each stage."""

    schedule: str
    ranks: int
    micro_batches: int
    layer_counts: tuple[int, ...]
    layers: npt.NDArray[np.float64]
    head: npt.NDArray[np.float64]
    host: npt.NDArray[np.float64]
    hop: float

    @property
    def pipeline(self) -> PipelineTimes:
        """The input of the simulation: layers where they are, the head on the last stage."""
        seconds = self.layers + self.host[:, None]
        seconds[:, -1] += self.head
        return self.pipeline_of(seconds, self.hop)

    def pipeline_of(self, seconds: npt.NDArray[np.float64], hop: float) -> PipelineTimes:
        """The input of the simulation with other `seconds` of the stages, [row, stage], and of a transfer."""
        forward, backward, weights = seconds
        weights = weights.copy()
        weights[0] = backward[
            0
        ]  # torch does not split it there: no rank waits for the first stage's gradients of inputs
        return PipelineTimes(
            schedule=self.schedule,
            ranks=self.ranks,
            micro_batches=self.micro_batches,
            forward=forward,
            inputs=backward - weights,
            weights=weights,
            hop=hop,
            waits=self.schedule in schedules.ONE_STAGE,
        )


def pipelines(cases: Cases, parts: Parts) -> list[PipelineTimes]:
    """The input of the simulation for each case, one item per case."""
    return [times.pipeline for times in stage_times(cases, parts)]


def stage_times(cases: Cases, parts: Parts) -> list[StageTimes]:
    """The seconds of each case by stage and origin, one item per case."""
    count = len(cases)

    def by_case(column: Column) -> Column:
        return np.broadcast_to(column, count)

    # Columns become rows of numbers, in the order that `_stage_times` takes.
    shape_columns = (
        cases.schedule, cases.pp, cases.interleave, cases.accumulate, cases.layers, cases.first_less, cases.last_less
    )  # fmt: skip
    end_columns = (parts.head_forward_s + parts.loss_s, parts.head_backward_s, parts.transfer_s)
    kind_columns = [
        (kind.count, kind.layers_before, kind.forward_s, kind.backward_s, kind.weight_gradient_s)
        for kind in parts.kinds
    ]
    case_rows = np.stack([by_case(column) for column in (*shape_columns, *end_columns)], axis=1).tolist()
    kind_rows = [np.stack([by_case(column) for column in kind], axis=1).tolist() for kind in kind_columns]
    return [
        _stage_times(case_row, kinds_of_case, parts.host_s)
        for case_row, kinds_of_case in zip(case_rows, zip(*kind_rows, strict=True), strict=True)
    ]


def _stage_times(case_row: Sequence[float], kinds: Sequence[Sequence[float]], host_s: float) -> StageTimes:
    """One case's seconds by stage. `case_row`: schedule, pp, interleave, micro-batches, layers, layers fewer on the
    first and the last stage, and seconds of the head's forward pass with the loss, the head's backward pass and a
    transfer; `kinds`: for each kind of layer, their count, the layers before them, and seconds of a layer's forward
    pass, backward pass, and the part of the latter for the gradients of weights. `host_s`: seconds of the host per
    micro-batch on each rank, outside the layers."""
    schedule, pp, interleave, micro_batches, layers, first_less, last_less, head_forward, head_backward, hop = case_row
    stages, name = round(pp * interleave), schedules.SCHEDULES[round(schedule)]
    layers_before = partition.divided(layers, stages, first_less, last_less).before(np.arange(stages + 1.0))
    layer_seconds = np.zeros((3, stages))
    for count, before, *seconds in kinds:
        layer_seconds += np.diff(np.clip(layers_before - before, 0, count)) * np.array(seconds)[:, None]
    return StageTimes(
        schedule=name,
        ranks=round(pp),
        micro_batches=round(micro_batches),
        layer_counts=tuple(np.diff(layers_before).astype(int).tolist()),
        layers=layer_seconds,
        head=np.array([head_forward, head_backward, head_backward / 2]),
        # Half of the host's time is in the forward pass, half in the backward pass, divided over the stages of a rank.
        host=host_s / interleave / 2 * np.array([1.0, 1.0, 0.0]),
        hop=hop,
    )
