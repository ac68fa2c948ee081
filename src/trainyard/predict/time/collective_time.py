"""Times of collectives and point-to-point transfers over two levels of links, as columns of seconds.

A ring visits all devices of a node before the next node, so that its slowest level sets the rate (Patarasuk and Yuan,
JPDC 69(2), 2009). The `near` ranks of a group that share a node also share its ports to other nodes; the node's other
ranks belong to other groups, which use their own ports at the same time. A column has a value per case (layout), of
shape [case]. `hardware` has the bandwidths of a rank's links in bytes/s (`intra_node`: in total within its node,
`peer`: to one rank of it, `inter_node`: to other nodes) and the ranks `per_node`; `tuned` the attainable shares of them
(`intra_node`, `inter_node`, `dispatch` for all-to-alls) and the seconds of a hop (`intra_node_s`, `inter_node_s`).
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


def group(hardware: RankHardware, ranks: Column, stride: Column) -> RankGroup:
    """The group of `ranks` ranks whose global ranks are `stride` apart; consecutive global ranks share a node."""
    return RankGroup(ranks, np.clip(np.floor(hardware.per_node / stride), 1.0, ranks))


def tensor(cases: Cases, hardware: RankHardware) -> RankGroup:
    return group(hardware, cases.tp, np.ones(1))


def context(cases: Cases, hardware: RankHardware) -> RankGroup:
    return group(hardware, cases.cp, cases.tp)


def shards(cases: Cases, hardware: RankHardware) -> RankGroup:
    """The ranks that shard weights or optimizer state: dp_shard x cp, because ranks of cp hold the same weights."""
    return group(hardware, cases.dp_shard * cases.cp, cases.tp)


def replicas(cases: Cases, hardware: RankHardware) -> RankGroup:
    """The ranks that hold the same weights, or the same shards of them."""
    divides = cases.is_sharded > 0
    ranks = cases.dp_replicate * np.where(divides, 1.0, cases.cp)
    return group(hardware, ranks, cases.tp * np.where(divides, cases.cp * cases.dp_shard, 1.0))


def experts(cases: Cases, hardware: RankHardware) -> RankGroup:
    return group(hardware, cases.ep, np.ones(1))


def _inside(hardware: RankHardware, near: Column) -> Column:
    """Bytes/s of a device in a collective of `near` ranks of its node; in a mesh the links to other ranks are idle."""
    return np.minimum(hardware.intra_node, hardware.peer * np.maximum(near - 1, 1.0))


def _wire(hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column) -> Column:
    """Seconds of data transfer for one pass of `size_bytes` around the ring of `members`, without latency."""
    # Each rank receives the part of the data that the others hold; the ring enters and leaves a node once.
    inside_bytes_per_s = _inside(hardware, members.near) * tuned.intra_node
    inside_s = (members.near - 1) / members.near * size_bytes / inside_bytes_per_s
    port_bytes_per_s = np.minimum(
        hardware.inter_node * members.near * tuned.inter_node, np.where(members.near > 1, inside_bytes_per_s, np.inf)
    )
    between_s = (members.nodes - 1) / members.nodes * size_bytes / port_bytes_per_s
    return np.where(members.nodes > 1, np.maximum(inside_s, between_s), inside_s)


def _hops(tuned: Constants, members: RankGroup) -> Column:
    return (members.near - 1) * tuned.intra_node_s + (members.nodes - 1) * tuned.inter_node_s


def _correct(nodes: Column, seconds: Column, ratio: Column) -> Column:
    """Predicted `seconds` of a collective times the `ratio` of the machine's own probes if it stays within a node."""
    return seconds * np.where(nodes > 1, 1.0, ratio)


def gather(
    hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column, collective: str = "all_gather"
) -> Column:
    """Seconds of an all-gather or, as `collective`, of a reduce_scatter, of `size_bytes` over all ranks; 0 for a single
    rank."""
    seconds = _wire(hardware, tuned, members, size_bytes) + _hops(tuned, members)
    seconds = _correct(members.nodes, seconds, hardware.collective_ratio(collective, size_bytes))
    return np.where(members.ranks > 1, seconds, 0.0)


def all_reduce(
    hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column, is_split: Column | None = None
) -> Column:
    """Seconds of an all-reduce of `size_bytes`, modelled as a reduce-scatter followed by an all-gather; 0 for a single
    rank. The latency between nodes is that of a ring or of a tree, whichever has fewer hops. `is_split`: 1 if these two
    are called instead, for the corrections of probed machines; None: never."""
    between_hops = np.minimum(members.nodes - 1, 2 * np.log2(np.maximum(members.nodes, 1.0)))
    latency_s = (members.near - 1) * tuned.intra_node_s + between_hops * tuned.inter_node_s
    seconds = 2 * (_wire(hardware, tuned, members, size_bytes) + latency_s)
    ratio = hardware.collective_ratio("all_reduce", size_bytes)
    if is_split is not None:
        halves = [hardware.collective_ratio(name, size_bytes) for name in ("reduce_scatter", "all_gather")]
        ratio = np.where(is_split > 0, (halves[0] + halves[1]) / 2, ratio)
    seconds = _correct(members.nodes, seconds, ratio)
    return np.where(members.ranks > 1, seconds, 0.0)


def exchange(hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column) -> Column:
    """Seconds of an all-to-all; each rank's input is `size_bytes` in total, including the part it keeps."""
    inside_s = (members.near - 1) / members.ranks * size_bytes / (_inside(hardware, members.near) * tuned.dispatch)
    between_s = (members.ranks - members.near) / members.ranks * size_bytes / (hardware.inter_node * tuned.dispatch)
    latency_s = tuned.intra_node_s + np.where(members.nodes > 1, tuned.inter_node_s, 0.0)
    seconds = np.maximum(inside_s, between_s) + latency_s
    seconds = _correct(members.nodes, seconds, hardware.collective_ratio("all_to_all", size_bytes))
    return np.where(members.ranks > 1, seconds, 0.0)


def dispatch(
    hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column, ranks: Column, nodes: Column
) -> Column:
    """Seconds to dispatch tokens of `size_bytes` in total, each to experts on `ranks` other ranks and `nodes` other
    nodes. A token is sent once to each node with one of its experts, and from there once to each device (DeepSeek-V3,
    arXiv:2412.19437, section 3.2.2)."""
    inside_s = ranks * size_bytes / (_inside(hardware, members.near) * tuned.dispatch)
    between_s = nodes * size_bytes / (hardware.inter_node * tuned.dispatch)
    latency_s = tuned.intra_node_s + np.where(members.nodes > 1, tuned.inter_node_s, 0.0)
    return np.where(members.ranks > 1, np.maximum(inside_s, between_s) + latency_s, 0.0)


def send(hardware: RankHardware, tuned: Constants, size_bytes: Column, stride: Column) -> Column:
    """Seconds to send `size_bytes` to the rank `stride` global ranks away."""
    is_same_node = stride < hardware.per_node
    inside_s = size_bytes / (hardware.peer * tuned.intra_node) + tuned.intra_node_s
    return np.where(
        is_same_node,
        inside_s * hardware.collective_ratio("send", size_bytes),
        size_bytes / (hardware.inter_node * tuned.inter_node) + tuned.inter_node_s,
    )
