"""Communication of data parallelism: per layer and for the tables of the vocabulary, all-gathered weights and
reduce-scattered gradients; or per step, all-reduced gradients.

A column has a value per case (layout), of shape [case]. Parameters are common to the data-parallel ranks or those of
experts, which fewer ranks share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from trainyard import words
from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.fine_tuning import NF4_BYTES
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import collective_time, offload, shapes
from trainyard.predict.time.collective_time import RankGroup
from trainyard.predict.time.shapes import Weights

_CollectiveTime = Callable[[RankHardware, Constants, RankGroup, Column], Column]
"""Returns the seconds of a collective from hardware, constants, members and size in bytes."""
_FLOAT32 = words.DTYPES["float32"]


class Exposed(NamedTuple):
    """Exposed seconds of an operation (`seconds`), and seconds overlapped with compute (`hidden`)."""

    seconds: Column
    hidden: Column

    def times(self, factor: Column | float) -> Exposed:
        return Exposed(self.seconds * factor, self.hidden * factor)

    def plus(self, other: Exposed) -> Exposed:
        return Exposed(self.seconds + other.seconds, self.hidden + other.hidden)


def overlap(tuned: Constants, communication_s: Column, compute_s: Column) -> Exposed:
    """Hides the fraction `tuned.overlap` of the shorter of two durations in seconds under the longer."""
    hidden_s = tuned.overlap * np.minimum(communication_s, compute_s)
    return Exposed(communication_s - hidden_s, hidden_s)


def layer_weights(cases: Cases, weights: Weights) -> tuple[Column, Column]:
    """(common, expert) parameters of the mean layer on a rank, before data parallelism shards them: those that all its
    data-parallel ranks share, and those of experts. `weights`: by kind, all or the trained ones."""
    dense, routed = (kind / cases.layers for kind in shapes.layer_kinds(cases))
    return weights.shared + dense * weights.dense + routed * weights.routed, routed * weights.expert


def gathered_bytes(cases: Cases, weights: Weights) -> tuple[Column, Column]:
    """(common, expert) bytes of the mean layer's `weights` as data parallelism gathers them: in the compute dtype, or
    quantised."""
    common, expert = layer_weights(cases, weights)
    if not (cases.quantised > 0).any():
        return common * cases.width_bytes, expert * cases.width_bytes
    matrices = shapes.quantised_weights(cases)
    dense_layers, _ = shapes.layer_kinds(cases)
    quantised = matrices.shared + matrices.dense * dense_layers / cases.layers
    return common * cases.width_bytes - quantised * (cases.width_bytes - NF4_BYTES), expert * cases.width_bytes


def expert_replicas(cases: Cases, hardware: RankHardware) -> RankGroup:
    """The ranks that hold the same experts."""
    stride = np.where(cases.ep > 1, cases.ep, cases.tp)
    ranks = np.maximum(cases.dp * cases.cp * cases.tp / stride, 1.0)
    return collective_time.group(hardware, ranks, stride, cases.ranks)


def count_owned_parameters(cases: Cases, hardware: RankHardware) -> tuple[Column, Column]:
    """Trained parameters whose optimizer state a rank keeps: (of the mean layer, outside the layers). The latter are
    the embedding and the head, mean over stages."""
    common, expert = layer_weights(cases, shapes.weights(cases).trained(cases))
    shards = np.where(cases.is_sharded > 0, cases.dp_shard * cases.cp, 1.0)
    owners = np.where(cases.is_sharded > 0, expert_replicas(cases, hardware).ranks, 1.0)
    return common / shards + expert / owners, count_end_parameters(cases) / cases.pp / shards


def _gathers_per_micro_batch(cases: Cases) -> np.ndarray:
    """Whether weights are gathered for every micro-batch. torch's pipelines gather a stage's weights and scatter its
    gradients once per step."""
    return (cases.is_sharded > 0) & (cases.zero >= 2) & (cases.pp == 1)


def sums_unsharded(cases: Cases) -> np.ndarray:
    """Whether the gradients of several micro-batches are summed unsharded, and reduced once per step."""
    resident = cases.offload != offload.ALL
    return (cases.delays_reduction > 0) & _gathers_per_micro_batch(cases) & resident & (cases.accumulate > 1)


def _reductions_per_micro_batch(cases: Cases) -> Column:
    """Reductions of the gradients per micro-batch: 1, or one per step."""
    return np.where(sums_unsharded(cases), 1 / np.maximum(cases.accumulate, 1.0), 1.0)


class Sharded(NamedTuple):
    """Communication of one layer and micro-batch: weights gathered in the forward pass and again in the backward pass,
    and gradients scattered. If weights are offloaded, `forward_copy` and `backward_copy` copy them from the host
    before each gather, and `gradient_copy` copies gradients to the host after the scatter."""

    forward_gather: Exposed
    backward_gather: Exposed
    gradient_scatter: Exposed
    forward_copy: Exposed
    backward_copy: Exposed
    gradient_copy: Exposed

    @property
    def forward_s(self) -> Column:
        """Exposed seconds of the forward pass."""
        return self.forward_gather.seconds + self.forward_copy.seconds

    @property
    def backward_s(self) -> Column:
        """Exposed seconds of the backward pass."""
        return (
            self.backward_gather.seconds
            + self.gradient_scatter.seconds
            + self.backward_copy.seconds
            + self.gradient_copy.seconds
        )


def sharded(cases: Cases, hardware: RankHardware, tuned: Constants, forward_s: Column, backward_s: Column) -> Sharded:
    """Communication of one layer and micro-batch, mean over the layers, overlapped with the compute of another,
    `forward_s` and `backward_s`: weights are gathered while the layer before computes, and gradients are scattered
    while the layer before goes backward. The first layer has none before it. ZeRO-2 keeps the gathered weights for the
    backward pass, ZeRO-1 never shards them (Rajbhandari et al. 2020, arXiv:1910.02054, section 5)."""
    shards, owners = collective_time.shards(cases, hardware), expert_replicas(cases, hardware)
    gathers = _gathers_per_micro_batch(cases)

    def time_exchange(common_bytes: Column, expert_bytes: Column, collective: str) -> Column:
        """Seconds to gather or scatter a layer's weights or gradients; 0 if that is not done for every micro-batch.
        `collective`: as of `collective_time.gather`."""
        common_s = collective_time.gather(hardware, tuned, shards, common_bytes, collective)
        expert_s = np.where(
            cases.experts > 0, collective_time.gather(hardware, tuned, owners, expert_bytes, collective), 0.0
        )
        return np.where(gathers, common_s + expert_s, 0.0)

    weights = shapes.weights(cases)
    gathered_s = time_exchange(*gathered_bytes(cases, weights), "all_gather")
    common, expert = layer_weights(cases, weights.trained(cases))
    scattered_s = time_exchange(common * cases.reduce_bytes, expert * cases.reduce_bytes, "reduce_scatter")
    reductions = _reductions_per_micro_batch(cases)
    regathered_s = np.where(cases.zero >= 3, gathered_s, 0.0)
    if not (cases.offload == offload.ALL).any():
        forward_gather = overlap(tuned, gathered_s, forward_s)
        backward_gather, scatter = overlap_in_sequence(tuned, (regathered_s, scattered_s), backward_s)
        if (reductions < 1).any():  # without gradients to scatter, the gathers have all compute to overlap with
            alone = overlap(tuned, regathered_s, backward_s)
            backward_gather = backward_gather.times(reductions).plus(alone.times(1 - reductions))
        return NOT_SHARDED._replace(
            forward_gather=_expose_first_layer(cases, forward_gather),
            backward_gather=backward_gather,
            gradient_scatter=_expose_first_layer(cases, scatter.times(reductions)),
        )
    owned_parameters, _ = count_owned_parameters(cases, hardware)  # of a layer, on a rank
    offloads = gathers & (cases.offload == offload.ALL)
    weight_copy_s = np.where(
        offloads, offload.copy_seconds(hardware, tuned, owned_parameters * cases.weight_bytes), 0.0
    )
    gradient_copy_s = np.where(
        offloads, offload.copy_seconds(hardware, tuned, owned_parameters * cases.gradient_bytes), 0.0
    )
    forward_gather, forward_copy = overlap_in_sequence(tuned, (gathered_s, weight_copy_s), forward_s)
    parts_s = regathered_s, scattered_s, np.where(cases.zero >= 3, weight_copy_s, 0.0), gradient_copy_s
    backward_gather, scatter, backward_copy, gradient_copy = overlap_in_sequence(tuned, parts_s, backward_s)
    return Sharded(
        forward_gather=_expose_first_layer(cases, forward_gather),
        backward_gather=backward_gather,
        gradient_scatter=_expose_first_layer(cases, scatter),
        forward_copy=forward_copy,
        backward_copy=backward_copy,
        gradient_copy=gradient_copy,
    )


NOT_SHARDED = Sharded(*(Exposed(np.zeros(1), np.zeros(1)) for _ in Sharded._fields))
"""No communication."""


def sharded_ends(
    cases: Cases, hardware: RankHardware, tuned: Constants, last_forward_s: Column, last_backward_s: Column
) -> Sharded:
    """Communication of the embedding and the head of one micro-batch, which stay gathered for the backward pass. The
    embedding is gathered first and scattered last, when nothing else computes; the exchanges of the head overlap with
    the last layer, whose seconds are `last_forward_s` and `last_backward_s`."""
    shards, gathers = collective_time.shards(cases, hardware), _gathers_per_micro_batch(cases)
    has_table = cases.lead_parameters == 0  # else samples enter by a projection, and the table is a classifier
    is_tied = has_table & (cases.tie_word_embeddings > 0)  # a single unit, gathered first and scattered last

    def exchange(weights: Weights, value_bytes: Column, collective: str, compute_s: Column) -> Exposed:
        embedding = np.where(has_table, weights.table, cases.lead_parameters)
        head = np.where(is_tied, 0.0, weights.table) + cases.tail_parameters
        embedding_s, head_s = (
            np.where(values > 0, collective_time.gather(hardware, tuned, shards, values * value_bytes, collective), 0.0)
            for values in (embedding, head)
        )
        overlapped = overlap(tuned, head_s, compute_s)
        exchanged = overlapped._replace(seconds=embedding_s + overlapped.seconds)
        return exchanged.times(np.where(gathers, 1.0, 0.0))

    weights = shapes.weights(cases)
    return NOT_SHARDED._replace(
        forward_gather=exchange(weights, cases.width_bytes, "all_gather", last_forward_s),
        gradient_scatter=exchange(weights.trained(cases), cases.reduce_bytes, "reduce_scatter", last_backward_s).times(
            _reductions_per_micro_batch(cases)
        ),
    )


def _expose_first_layer(cases: Cases, part: Exposed) -> Exposed:
    """The mean over layers of which one overlaps with nothing. `part`: of a layer that overlaps."""
    exposed_s = part.hidden / cases.layers
    return Exposed(part.seconds + exposed_s, part.hidden - exposed_s)


def overlap_in_sequence(tuned: Constants, parts_s: Sequence[Column], compute_s: Column) -> list[Exposed]:
    """Overlaps consecutive communications, `parts_s` seconds each, with the same compute; each has a proportional share
    of what is hidden."""
    total_s = sum(parts_s, np.zeros(1))
    overlapped_total = overlap(tuned, total_s, compute_s)
    return [
        overlapped_total.times(
            np.divide(part_s, total_s, out=np.zeros_like(overlapped_total.seconds), where=total_s > 0)
        )
        for part_s in parts_s
    ]


def once(cases: Cases, hardware: RankHardware, tuned: Constants, backward_s: Column) -> tuple[Exposed, Exposed]:
    """(all-reduce, sharded exchange): communication once per step. The all-reduce sums gradients over ranks with the
    same weights; the exchange, with ZeRO-1 or in a pipeline, is the reduce-scatter of gradients and the all-gather of
    new weights; with trainyard's ZeRO-1, an all-reduce of gradients, and the all-gather after the update; with Muon,
    whose matrices are not divided, an all-reduce and the all-gather. All but trainyard's all-gather may overlap with
    `backward_s`, the seconds of the last micro-batch's backward pass on a stage."""
    stage_layers = cases.layers / cases.pp
    trained = layer_weights(cases, shapes.weights(cases).trained(cases))
    common, expert = (stage_layers * weights for weights in trained)
    common = common + count_end_parameters(cases) / cases.pp
    is_sharded = cases.is_sharded > 0
    shard_ranks = np.where(is_sharded, cases.dp_shard * cases.cp, 1.0)
    replica_group = collective_time.replicas(cases, hardware)
    all_reduce_s = collective_time.all_reduce(hardware, tuned, replica_group, common * cases.reduce_bytes / shard_ranks)
    owners, shard_group = expert_replicas(cases, hardware), collective_time.shards(cases, hardware)
    expert_all_reduce_s = collective_time.all_reduce(hardware, tuned, owners, expert * cases.reduce_bytes)
    all_reduce_s = all_reduce_s + np.where(is_sharded | (cases.experts == 0), 0.0, expert_all_reduce_s)

    def exchange_s(value_bytes: Column | float, collective: _CollectiveTime = collective_time.gather) -> Column:
        """Seconds of a collective of `value_bytes` bytes per parameter over the ranks that divide it."""
        seconds = collective(hardware, tuned, shard_group, common * value_bytes) + np.where(
            cases.experts > 0, collective(hardware, tuned, owners, expert * value_bytes), 0.0
        )
        return np.where(is_sharded & ~_gathers_per_micro_batch(cases), seconds, 0.0)

    # trainyard's ZeRO-1 is DDP, which all-reduces gradients, and gathers float32 weights after the update.
    is_ddp = (cases.native > 0) & (cases.zero == 1) & (cases.pp == 1)
    during_backward_s = np.where(
        is_ddp,
        exchange_s(cases.reduce_bytes, collective_time.all_reduce),
        exchange_s(cases.reduce_bytes + cases.width_bytes),
    )
    if (cases.muon_iterations > 0).any():
        during_backward_s = np.where(
            cases.muon_iterations > 0,
            exchange_s(cases.reduce_bytes, collective_time.all_reduce) + exchange_s(cases.width_bytes),
            during_backward_s,
        )
    overlapped = overlap(tuned, during_backward_s, np.maximum(backward_s - all_reduce_s, 0.0))
    after_update_s = np.where(is_ddp, exchange_s(_FLOAT32), 0.0)
    return overlap(tuned, all_reduce_s, backward_s), overlapped._replace(seconds=overlapped.seconds + after_update_s)


def count_end_parameters(cases: Cases) -> Column:
    """Trained parameters outside the layers, per case: the embedding and the head of all stages, on one rank of tp."""
    table = shapes.weights(cases).trained(cases).table
    return (
        table * np.where(cases.lead_parameters > 0, 1.0, count_tables(cases))
        + cases.lead_parameters
        + cases.tail_parameters
    )


def count_tables(cases: Cases) -> Column:
    """Tables of vocabulary x width that the model has over all stages: the embedding and the head, or one if they are
    tied on one stage."""
    return np.where(cases.tie_word_embeddings > 0, np.where(cases.pp > 1, 2.0, 1.0), 2.0)
