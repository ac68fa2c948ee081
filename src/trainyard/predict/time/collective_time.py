"""Times of collectives and point-to-point transfers over two levels of links, as columns of seconds.

A ring visits all devices of a node before the next node, so that its slowest level sets the rate (Patarasuk and Yuan,
JPDC 69(2), 2009). The `near` ranks of a group that share a node also share its ports to other nodes; the node's other
ranks belong to other groups, which use their own ports at the same time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware


class RankGroup(NamedTuple):
    """The `ranks` of a collective, `near` of which share a node."""

    ranks: Column
    near: Column

    @property
    def nodes(self) -> Column:
        return self.ranks / self.near


def group(hardware: RankHardware, ranks: Column, step: Column) -> RankGroup:
    """The group of `ranks` whose global ranks are `step` apart (its stride)."""
    return RankGroup(ranks, np.clip(np.floor(hardware.per_node / step), 1.0, ranks))


def tensor(cases: Cases, hardware: RankHardware) -> RankGroup:
    return group(hardware, cases.tp, np.ones(1))


def context(cases: Cases, hardware: RankHardware) -> RankGroup:
    return group(hardware, cases.cp, cases.tp)


def shards(cases: Cases, hardware: RankHardware) -> RankGroup:
    """The ranks that shard weights or optimizer state: dp_shard x cp, because ranks of cp hold the same weights."""
    return group(hardware, cases.dp_shard * cases.cp, cases.tp)


def replicas(cases: Cases, hardware: RankHardware) -> RankGroup:
    """The ranks that hold the same weights, or the same shards of them."""
    divides = cases.divided > 0
    ranks = cases.dp_replicate * np.where(divides, 1.0, cases.cp)
    return group(hardware, ranks, cases.tp * np.where(divides, cases.cp * cases.dp_shard, 1.0))


def experts(cases: Cases, hardware: RankHardware) -> RankGroup:
    return group(hardware, cases.ep, np.ones(1))


def _inside(hardware: RankHardware, near: Column) -> Column:
    """Bytes/s of a device in a collective of `near` ranks of its node; in a mesh the links to other ranks are idle."""
    return np.minimum(hardware.inside, hardware.peer * np.maximum(near - 1, 1.0))


def _wire(hardware: RankHardware, tuned: Constants, members: RankGroup, size: Column) -> Column:
    """Seconds of data transfer for one pass around the ring, without latency."""
    inside = _inside(hardware, members.near) * tuned.inside
    inside_s = (members.near - 1) / members.near * size / inside
    ports = np.minimum(hardware.between * members.near * tuned.between, np.where(members.near > 1, inside, np.inf))
    between_s = (members.nodes - 1) / members.nodes * size / ports
    return np.where(members.nodes > 1, np.maximum(inside_s, between_s), inside_s)


def _hops(tuned: Constants, members: RankGroup) -> Column:
    return (members.near - 1) * tuned.inside_s + (members.nodes - 1) * tuned.between_s


def gather(hardware: RankHardware, tuned: Constants, members: RankGroup, size: Column) -> Column:
    """Seconds of an all-gather or reduce-scatter of `size` bytes in total; 0 for a single rank."""
    wire = _wire(hardware, tuned, members, size) + _hops(tuned, members)
    return np.where(members.ranks > 1, wire, 0.0)


def reduce(hardware: RankHardware, tuned: Constants, members: RankGroup, size: Column) -> Column:
    """Seconds of an all-reduce of `size` bytes; a tree takes fewer hops over many nodes."""
    far = np.minimum(members.nodes - 1, 2 * np.log2(np.maximum(members.nodes, 1.0)))
    hops = (members.near - 1) * tuned.inside_s + far * tuned.between_s
    return np.where(members.ranks > 1, 2 * (_wire(hardware, tuned, members, size) + hops), 0.0)


def exchange(hardware: RankHardware, tuned: Constants, members: RankGroup, size: Column) -> Column:
    """Seconds of an all-to-all; each rank's input is `size` bytes in total, including the part it keeps."""
    inside_s = (members.near - 1) / members.ranks * size / (_inside(hardware, members.near) * tuned.dispatch)
    between_s = (members.ranks - members.near) / members.ranks * size / (hardware.between * tuned.dispatch)
    hops = tuned.inside_s + np.where(members.nodes > 1, tuned.between_s, 0.0)
    return np.where(members.ranks > 1, np.maximum(inside_s, between_s) + hops, 0.0)


def dispatch(hardware: RankHardware, tuned: Constants, members: RankGroup, size: Column, experts: Column) -> Column:
    """Seconds to dispatch tokens of `size` bytes in total to their experts, `experts` per token. A token is sent once
    to each node with one of its experts, and from there once to each device (DeepSeek-V3, arXiv:2412.19437,
    section 3.2.2)."""
    inside_s = (
        (members.ranks - 1)
        * _hit_probability(members.ranks, experts)
        * size
        / (_inside(hardware, members.near) * tuned.dispatch)
    )
    between_s = (
        (members.nodes - 1) * _hit_probability(members.nodes, experts) * size / (hardware.between * tuned.dispatch)
    )
    hops = tuned.inside_s + np.where(members.nodes > 1, tuned.between_s, 0.0)
    return np.where(members.ranks > 1, np.maximum(inside_s, between_s) + hops, 0.0)


def _hit_probability(places: Column, experts: Column) -> Column:
    """Probability that at least one of a token's `experts` is at a given one of `places`, if all are equally likely."""
    return 1 - (1 - 1 / np.maximum(places, 1.0)) ** experts


def send(hardware: RankHardware, tuned: Constants, size: Column, step: Column) -> Column:
    """Seconds to send `size` bytes to the rank `step` ranks away."""
    is_same_node = step < hardware.per_node
    return np.where(
        is_same_node,
        size / (hardware.peer * tuned.inside) + tuned.inside_s,
        size / (hardware.between * tuned.between) + tuned.between_s,
    )
