"""Communication of data parallelism: per layer, all-gathered weights and reduce-scattered gradients; or per step,
all-reduced gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import collective_time, offload, shapes
from trainyard.predict.time.collective_time import RankGroup


class Exposed(NamedTuple):
    """Exposed seconds of an operation (`seconds`), and seconds overlapped with compute (`hidden`)."""

    seconds: Column
    hidden: Column

    def times(self, factor: Column | float) -> Exposed:
        return Exposed(self.seconds * factor, self.hidden * factor)


def overlapped(tuned: Constants, communication: Column, compute: Column) -> Exposed:
    """Hides the fraction `tuned.overlap` of the shorter duration under the longer."""
    hidden = tuned.overlap * np.minimum(communication, compute)
    return Exposed(communication - hidden, hidden)


def layer_weights(cases: Cases, trained: bool = False) -> tuple[Column, Column]:
    """Parameters of the mean layer on a rank: those that all its data-parallel ranks share, and those of experts.
    `trained`: count trained parameters only."""
    dense, routed = (kind / cases.layers for kind in shapes.layer_kinds(cases))
    weights = shapes.weights(cases)
    weights = weights.trained(cases) if trained else weights
    return weights.shared + dense * weights.dense + routed * weights.routed, routed * weights.expert


def expert_replicas(cases: Cases, hardware: RankHardware) -> RankGroup:
    """The ranks that hold the same experts."""
    stride = np.where(cases.ep > 1, cases.ep, cases.tp)
    ranks = np.maximum(cases.dp * cases.cp * cases.tp / stride, 1.0)
    return collective_time.group(hardware, ranks, stride)


def owned(cases: Cases, hardware: RankHardware) -> tuple[Column, Column]:
    """Trained parameters whose optimizer state a rank keeps: of the mean layer, and outside the layers (embedding and
    head, mean over stages)."""
    common, expert = layer_weights(cases, trained=True)
    shards = np.where(cases.divided > 0, cases.dp_shard * cases.cp, 1.0)
    owners = np.where(cases.divided > 0, expert_replicas(cases, hardware).ranks, 1.0)
    return common / shards + expert / owners, ends(cases) / cases.pp / shards


def _gathers_per_micro_batch(cases: Cases) -> np.ndarray:
    """Whether weights are gathered for every micro-batch. torch's pipelines gather a stage's weights and scatter its
    gradients once per step."""
    return (cases.divided > 0) & (cases.zero >= 2) & (cases.pp == 1)


class Sharded(NamedTuple):
    """Communication of one layer and micro-batch: weights gathered in the forward pass and again in the backward pass,
    and gradients scattered. `up`, `again_up` and `down`: copies from the host before the two gathers, and to the host
    after the scatter."""

    forward: Exposed
    again: Exposed
    scattered: Exposed
    up: Exposed
    again_up: Exposed
    down: Exposed

    @property
    def ahead(self) -> Column:
        """Exposed seconds of the forward pass."""
        return self.forward.seconds + self.up.seconds

    @property
    def back(self) -> Column:
        """Exposed seconds of the backward pass."""
        return self.again.seconds + self.scattered.seconds + self.again_up.seconds + self.down.seconds


def sharded(cases: Cases, hardware: RankHardware, tuned: Constants, forward: Column, backward: Column) -> Sharded:
    """Communication of one layer and micro-batch, overlapped with its `forward` and `backward` seconds. ZeRO-2 keeps
    the gathered weights for the backward pass, ZeRO-1 never shards them (Rajbhandari et al. 2020, arXiv:1910.02054,
    section 5)."""
    shards, owners = collective_time.shards(cases, hardware), expert_replicas(cases, hardware)
    active = _gathers_per_micro_batch(cases)

    def exchanged(value_bytes: Column, trained: bool) -> Column:
        common, expert = layer_weights(cases, trained)
        common_s = collective_time.gather(hardware, tuned, shards, common * value_bytes)
        routed = np.where(cases.experts > 0, collective_time.gather(hardware, tuned, owners, expert * value_bytes), 0.0)
        return np.where(active, common_s + routed, 0.0)

    gathered, scattered = exchanged(cases.width_bytes, False), exchanged(cases.reduce_bytes, True)
    regathered = np.where(cases.zero >= 3, gathered, 0.0)
    if not (cases.offload > 1).any():
        first, (again, sent) = (
            overlapped(tuned, gathered, forward),
            overlap_in_sequence(tuned, (regathered, scattered), backward),
        )
        return Sharded(first, again, sent, _NOTHING, _NOTHING, _NOTHING)
    (own, _), away = owned(cases, hardware), active & (cases.offload > 1)
    up = np.where(away, offload.copied(hardware, tuned, own * cases.weight_bytes), 0.0)
    down = np.where(away, offload.copied(hardware, tuned, own * cases.gradient_bytes), 0.0)
    first, above = overlap_in_sequence(tuned, (gathered, up), forward)
    parts = regathered, scattered, np.where(cases.zero >= 3, up, 0.0), down
    again, sent, again_up, below = overlap_in_sequence(tuned, parts, backward)
    return Sharded(first, again, sent, above, again_up, below)


_NOTHING = Exposed(np.zeros(1), np.zeros(1))


def overlap_in_sequence(tuned: Constants, parts: Sequence[Column], compute: Column) -> list[Exposed]:
    """Overlap consecutive communications with the same compute; each has a proportional share of what is hidden."""
    total = sum(parts, np.zeros(1))
    both = overlapped(tuned, total, compute)
    return [both.times(np.divide(part, total, out=np.zeros_like(both.seconds), where=total > 0)) for part in parts]


def once(cases: Cases, hardware: RankHardware, tuned: Constants, backward: Column) -> tuple[Exposed, Exposed]:
    """Communication once per step: the all-reduce of gradients over ranks with the same weights; and, with ZeRO-1 or in
    a pipeline, the reduce-scatter of gradients and the all-gather of new weights. Both may overlap with `backward`, the
    seconds of the last micro-batch's backward pass on a stage."""
    here = cases.layers / cases.pp
    common, expert = (here * weights for weights in layer_weights(cases, trained=True))
    common = common + ends(cases) / cases.pp
    divides = cases.divided > 0
    part = np.where(divides, cases.dp_shard * cases.cp, 1.0)
    same = collective_time.replicas(cases, hardware)
    summed = collective_time.reduce(hardware, tuned, same, common * cases.reduce_bytes / part)
    owners, shard_group = expert_replicas(cases, hardware), collective_time.shards(cases, hardware)
    all_owners = collective_time.reduce(hardware, tuned, owners, expert * cases.reduce_bytes)
    summed = summed + np.where(divides | (cases.experts == 0), 0.0, all_owners)
    both = cases.reduce_bytes + cases.width_bytes
    first = collective_time.gather(hardware, tuned, shard_group, common * both) + np.where(
        cases.experts > 0, collective_time.gather(hardware, tuned, owners, expert * both), 0.0
    )
    divided = np.where(divides & ~_gathers_per_micro_batch(cases), first, 0.0)
    return overlapped(tuned, summed, backward), overlapped(tuned, divided, np.maximum(backward - summed, 0.0))


def ends(cases: Cases) -> Column:
    """Trained parameters before the layers and after them, on a rank of tp, of all stages."""
    table = shapes.weights(cases).trained(cases).table
    return table * np.where(cases.lead > 0, 1.0, tables(cases)) + cases.lead + cases.tail


def tables(cases: Cases) -> Column:
    """Tables of vocabulary x width that the model has."""
    return np.where(cases.tied > 0, np.where(cases.pp > 1, 2.0, 1.0), 2.0)
