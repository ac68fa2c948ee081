"""Times of collectives and point-to-point transfers inside nodes, between nodes and across switches, in seconds.

A ring visits all devices of a node before the next node, so that its slowest level sets the rate (Patarasuk and Yuan,
JPDC 69(2), 2009). The `near` ranks of a group that share a node also share its ports to other nodes; the node's other
ranks belong to other groups, which use their own ports at the same time. A column has a value per case (layout), of
shape [case]. `hardware` has the bandwidths of a rank's links in bytes/s (`intra_node`: in total within its node,
`peer`: to one rank of it, `inter_node`: to other nodes) and the ranks `per_node`; `tuned` the attainable shares of them
(`intra_node`, `inter_node`, `dispatch` for all-to-alls) and the seconds of a hop (`intra_node_s`, `inter_node_s`).

Above the nodes, a machine may have levels of switches (`RankHardware.fabric`). A pod is what is below one group of
switches of a level. Its uplinks carry the bandwidth of all its ranks' ports over the level's oversubscription. The time
of a collective is then the maximum over the links of the bytes that cross them over their bandwidth, where:

- all ranks of a pod run the same collective at the same time, each in its own group, and those groups that leave the
  pod share its uplinks. If pods do not consist of whole groups, nor groups of whole pods, the bytes are an upper bound;
- ranks are placed in pods in their global order, and traffic is balanced over the uplinks (Zahavi, "Fat-tree routing
  and node ordering providing contention free traffic for MPI global collectives", JPDC 72(11), 2012, shows how). Hash
  collisions and other jobs are not included;
- in a rail-optimised network, messages leave a node at the device with the index of the receiver's in its node (NCCL's
  PXN), so that they do not cross the leaf level within a pod. Without PXN, messages between devices of different
  indices use the uplinks, also within a pod. Rings and trees stay in their rail if the members of the group in one node
  have the same indices as in the next; otherwise each node counts as a pod.

**Algorithms.** A collective takes the fastest algorithm that the machine has, as NCCL's tuner chooses: a ring, a pair
of trees over nodes (all-reduces), a reduction in the switches of a node (NVLS), or trees with one rank per node (PAT,
all-gathers and reduce-scatters). The seconds of their hops are multiples of a hop of a ring, which is fitted; the
factors are those of NCCL's tuner.

With an oversubscription of 1, no term of a pod exceeds that of a node, and the bandwidth is that of an ideal network.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import PodLevel, RankHardware
from trainyard.predict.time import torus_time
from trainyard.predict.time.torus_time import TorusBox

_NVLS_HOPS = 25.0 / 3.4
"""Latency of a collective in the switches of a node, over that of a hop of a ring: NCCL's 25 us and 3.4 us
(NVIDIA/nccl src/graph/tuning.cc, `hwLat`, NVLink, Simple)."""
_NVLS_BANDWIDTH = 0.74
"""Bandwidth of a collective in the switches of a node over that of a ring: NCCL's `nvlsEfficiency` of Blackwell, the
lower one (0.85 for Hopper). With it 8 H100 attain 1.15 times the bus bandwidth of a ring in an all-reduce."""
_PAT_LOG_HOPS, _PAT_RANK_HOPS, _PAT_BANDWIDTH = 1 / 3.5, 2.8 / 14.0, 0.75
"""Latency of PAT for each level of its tree and for each rank, over that of a hop of a ring between nodes (14 us), and
its bandwidth over that of a ring (NVIDIA/nccl src/graph/tuning.cc)."""


class PodSpan(NamedTuple):
    """How groups of the same size and stride lie in the pods of a level of switches.

    `pods`: pods that a group spans at most, 1 if each is in one pod. `per_pod`: its ranks in one pod. `is_even`: 1 if
    it spans whole pods, with `per_pod` ranks in each. `leaving`: groups with ranks on both sides of a pod's boundary,
    over the ranks of the pod. `outside`: share of the members of its group that are not in the same pod, mean over the
    ranks of a pod."""

    pods: Column
    per_pod: Column
    is_even: Column
    leaving: Column
    outside: Column


class RankGroup(NamedTuple):
    """The `ranks` of a collective, `near` of which share a node. `spans`: for each level of switches between nodes.
    `box`: of those in a node, if its links are a torus. `other_rails`: share of a rank's messages to other nodes whose
    receivers have another index in their nodes."""

    ranks: Column
    near: Column
    spans: tuple[PodSpan, ...] = ()
    box: TorusBox | None = None
    other_rails: Column | float = 0.0

    @property
    def nodes(self) -> Column:
        return self.ranks / self.near


def group(hardware: RankHardware, ranks: Column, stride: Column, job_ranks: Column) -> RankGroup:
    """The group of `ranks` ranks whose global ranks are `stride` apart; consecutive global ranks share a node.
    `job_ranks`: ranks of the job."""
    near = np.clip(np.floor(hardware.per_node / stride), 1.0, ranks)
    spans = tuple(_pod_span(level, ranks, near, stride, job_ranks) for level in hardware.fabric)
    box = torus_time.box(hardware.torus, near, stride, job_ranks) if hardware.torus else None
    members = RankGroup(ranks, near, spans, box)
    return _on_rails(hardware, members, stride) if _has_rails(hardware, "forwarded", "crossed") else members


def _has_rails(hardware: RankHardware, *rails: str) -> bool:
    """Whether a level of switches has rails, between which messages travel in one of these ways."""
    return any(level.rails in rails for level in hardware.fabric)


def _pod_span(level: PodLevel, ranks: Column, near: Column, stride: Column, job_ranks: Column) -> PodSpan:
    """How the groups of a job lie in the pods of a level: `stride` groups are a block of consecutive ranks."""
    block_ranks = ranks * stride
    is_inside = (job_ranks <= level.ranks) | (np.mod(level.ranks, block_ranks) == 0)
    is_whole = np.mod(block_ranks, level.ranks) == 0  # a block consists of whole pods
    # Pods of a job of one block have no rank of another, although the last one may not be full.
    is_alone = is_whole | (block_ranks >= job_ranks)
    pods = np.ceil(block_ranks / level.ranks)
    # Otherwise a block leaves a pod at each of its ends, and its groups may span one pod more.
    leaving = np.where(is_alone, 1.0, 2.0) * np.minimum(stride / level.ranks, 1.0)
    # At most, if each group of the pod has equally many ranks in it, and blocks are cut in the middle.
    outside = np.where(
        is_alone,
        1 - level.ranks / block_ranks,
        np.where(block_ranks > level.ranks, 1 - level.ranks / block_ranks / 2, block_ranks / level.ranks / 2),
    )
    return PodSpan(
        pods=np.where(is_inside, 1.0, np.minimum(np.where(is_alone, pods, pods + 1), np.ceil(ranks / near))),
        per_pod=np.clip(np.floor(level.ranks / stride), near, ranks),
        is_even=np.where(is_whole & (np.mod(level.ranks, stride) == 0), 1.0, 0.0),
        leaving=np.where(is_inside, 0.0, leaving),
        outside=np.where(is_inside, 0.0, np.minimum(outside, (ranks - near) / ranks)),
    )


def _on_rails(hardware: RankHardware, members: RankGroup, stride: Column) -> RankGroup:
    """The group with its traffic between rails: the share of messages to other nodes whose receivers have another
    index, and the spans of levels whose uplinks carry these messages."""
    per_node = hardware.per_node
    common = np.gcd(stride.astype(np.int64), per_node.astype(np.int64))
    other_rails = 1 - 1 / np.minimum(per_node / common, members.ranks)
    spans = tuple(
        _cross_rails(members, span, stride, per_node, other_rails) if level.rails == "crossed" else span
        for level, span in _levels(hardware, members)
    )
    return members._replace(spans=spans, other_rails=other_rails)


def _cross_rails(members: RankGroup, span: PodSpan, stride: Column, per_node: Column, other_rails: Column) -> PodSpan:
    """The span, if messages between devices of different indices use the uplinks of their pod."""
    between_share = (members.ranks - members.near) / members.ranks
    changes_rail = _changes_rail(stride, per_node) & (members.nodes > 1)
    return PodSpan(
        pods=np.where(changes_rail, np.ceil(members.nodes), span.pods),
        per_pod=np.where(changes_rail, members.near, span.per_pod),
        is_even=span.is_even,
        leaving=np.where(changes_rail, np.maximum(1 / members.near, span.leaving), span.leaving),
        outside=span.outside + (between_share - span.outside) * other_rails,
    )


def _changes_rail(stride: Column, per_node: Column) -> np.ndarray:
    """Whether ranks that are `stride` apart, in consecutive nodes, have different indices in them."""
    return (np.mod(stride, per_node) != 0) & (np.mod(per_node, stride) != 0)


def tensor(cases: Cases, hardware: RankHardware) -> RankGroup:
    return group(hardware, cases.tp, np.ones(1), cases.ranks)


def context(cases: Cases, hardware: RankHardware) -> RankGroup:
    return group(hardware, cases.cp, cases.tp, cases.ranks)


def shards(cases: Cases, hardware: RankHardware) -> RankGroup:
    """The ranks that shard weights or optimizer state: dp_shard x cp, because ranks of cp hold the same weights."""
    return group(hardware, cases.dp_shard * cases.cp, cases.tp, cases.ranks)


def replicas(cases: Cases, hardware: RankHardware) -> RankGroup:
    """The ranks that hold the same weights, or the same shards of them."""
    divides = cases.is_sharded > 0
    ranks = cases.dp_replicate * np.where(divides, 1.0, cases.cp)
    return group(hardware, ranks, cases.tp * np.where(divides, cases.cp * cases.dp_shard, 1.0), cases.ranks)


def experts(cases: Cases, hardware: RankHardware) -> RankGroup:
    return group(hardware, cases.ep, np.ones(1), cases.ranks)


def _inside(hardware: RankHardware, members: RankGroup) -> Column:
    """Bytes/s of a rank in a ring of its node; in a mesh or torus the links to ranks outside of the group are idle."""
    if members.box:
        return members.box.gather
    return np.minimum(hardware.intra_node, hardware.peer * np.maximum(members.near - 1, 1.0))


def _inside_exchange(hardware: RankHardware, members: RankGroup) -> Column:
    """Bytes/s of a rank in an all-to-all of its node."""
    return members.box.exchange if members.box else _inside(hardware, members)


def _inside_hops(tuned: Constants, members: RankGroup) -> Column:
    """Seconds of the hops of a ring in a node."""
    return (members.box.hops if members.box else members.near - 1) * tuned.intra_node_s


def _levels(hardware: RankHardware, members: RankGroup) -> Iterator[tuple[PodLevel, PodSpan]]:
    """(level of switches, how the group lies in its pods); none for groups that were not placed in pods."""
    return zip(hardware.fabric, members.spans, strict=False)


def _wire(hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column) -> Column:
    """Seconds of data transfer for one pass of `size_bytes` around the ring of `members`, without latency."""
    inside_s, between_s = _node_seconds(hardware, tuned, members, size_bytes)
    # A ring leaves each pod once, with (ranks - 1) / ranks of the data, as on each of its links.
    ring_bytes = (members.ranks - 1) / members.ranks * size_bytes
    for level, span in _levels(hardware, members):
        between_s = np.maximum(
            between_s, _uplink_seconds(hardware, tuned, members, level, span, ring_bytes, size_bytes)
        )
    return np.where(members.nodes > 1, np.maximum(inside_s, between_s), inside_s)


def _uplink_seconds(
    hardware: RankHardware, tuned: Constants, members: RankGroup, level: PodLevel, span: PodSpan,
    crossing_bytes: Column, size_bytes: Column,
) -> Column:  # fmt: skip
    """Seconds until all groups have sent `crossing_bytes` each out of a pod, in a ring or tree of `size_bytes`; no more
    than the ports of its nodes send."""
    # Per port: a group sends (nodes - 1) / nodes of the data from each node, over `near` ports.
    port_bytes = (members.nodes - 1) / members.nodes * size_bytes / members.near
    uplink_bytes = np.minimum(span.leaving * crossing_bytes, np.where(span.leaving > 0, port_bytes, 0.0))
    return uplink_bytes * level.oversubscription / (hardware.inter_node * tuned.inter_node)


def _node_seconds(
    hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column
) -> tuple[Column, Column]:
    """Seconds of one pass of `size_bytes` around the ring: (on the links in a node, on the ports of a node)."""
    # Each rank receives the part of the data that the others hold; the ring enters and leaves a node once.
    inside_bytes_per_s = _inside(hardware, members) * tuned.intra_node
    inside_s = (members.near - 1) / members.near * size_bytes / inside_bytes_per_s
    port_bytes_per_s = np.minimum(
        hardware.inter_node * members.near * tuned.inter_node, np.where(members.near > 1, inside_bytes_per_s, np.inf)
    )
    between_s = (members.nodes - 1) / members.nodes * size_bytes / port_bytes_per_s
    return inside_s, between_s


def _tree_wire(hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column) -> Column:
    """Seconds of data transfer for one direction (up or down) of the two trees over nodes that NCCL builds, each with
    half of `size_bytes`, without latency.

    The ports of a node carry as much as in a ring, in the mean over nodes: a tree has one edge fewer than nodes. Each
    edge that leaves a pod carries a quarter of the data per direction of the tree, up and down together.
    """
    inside_s, between_s = _node_seconds(hardware, tuned, members, size_bytes)
    for level, span in _levels(hardware, members):
        edge_bytes = _crossing_edges(span.per_pod / members.near, span) * size_bytes / 4
        between_s = np.maximum(
            between_s, _uplink_seconds(hardware, tuned, members, level, span, edge_bytes, size_bytes)
        )
    return np.where(members.nodes > 1, np.maximum(inside_s, between_s), inside_s)


def _crossing_edges(nodes_per_pod: Column, span: PodSpan) -> Column:
    """Most edges between a pod and the others in both trees together, if each pod has consecutive nodes, as counted in
    the trees of nccl/src/graph/trees.cc (`ncclGetDtree`). Exact for groups that span whole
    pods, with a power of two of their nodes in each; for others an upper bound."""
    # In one tree, every second pod has 4 edges and the others 2. The second tree is the mirror image of the first.
    aligned = np.where(span.pods <= 3, 4.0, np.where(span.pods % 2 == 0, 6.0, 8.0))
    height = np.log2(nodes_per_pod)
    return np.where(
        (span.is_even > 0) & (height % 1 == 0), aligned, 4 * np.ceil(np.log2(np.ceil(nodes_per_pod + 1))) + 4
    )


def _hops(hardware: RankHardware, tuned: Constants, members: RankGroup) -> Column:
    """Seconds of the hops of a ring: between the ranks of a node, between nodes, and from pod to pod."""
    latency_s = _inside_hops(tuned, members) + (members.nodes - 1) * tuned.inter_node_s
    for level, span in _levels(hardware, members):
        latency_s = latency_s + (span.pods - 1) * level.latency_s
    return latency_s


def _tree_hops(hardware: RankHardware, tuned: Constants, members: RankGroup) -> Column:
    """Seconds of the hops of a tree over nodes. Like those between nodes, hops between pods are two for each level of
    the tree."""
    between_hops = 2 * np.log2(np.maximum(members.nodes, 1.0))
    latency_s = _inside_hops(tuned, members) + between_hops * tuned.inter_node_s
    for level, span in _levels(hardware, members):
        latency_s = latency_s + 2 * np.log2(span.pods) * level.latency_s
    return latency_s


def _message_latency(hardware: RankHardware, tuned: Constants, members: RankGroup) -> Column:
    """Seconds of latency of messages to all members at the same time: one hop in the node, one between nodes, and one
    across each level of switches that messages cross."""
    distance_s = members.box.distance_s if members.box else 0.0
    latency_s = tuned.intra_node_s + distance_s + np.where(members.nodes > 1, tuned.inter_node_s, 0.0)
    for level, span in _levels(hardware, members):
        latency_s = latency_s + np.where(span.outside > 0, level.latency_s, 0.0)
    return latency_s


def _oversubscribed(hardware: RankHardware, members: RankGroup) -> Column:
    """Factor of the time on the ports of a node, if each rank sends equally to all members on other nodes: the share
    of it that leaves a pod takes the pod's oversubscription times as long."""
    other_nodes = np.where(members.nodes > 1, (members.ranks - members.near) / members.ranks, 1.0)
    factor = np.ones(1)
    for level, span in _levels(hardware, members):
        factor = np.maximum(factor, level.oversubscription * span.outside / other_nodes)
    return factor


def _correct(nodes: Column, seconds: Column, ratio: Column) -> Column:
    """Predicted `seconds` of a collective times the `ratio` of the machine's own probes if it stays within a node."""
    return seconds * np.where(nodes > 1, 1.0, ratio)


def _gather_seconds(hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column) -> Column:
    """Seconds of an all-gather or a reduce-scatter by the fastest algorithm."""
    ring_wire_s = _wire(hardware, tuned, members, size_bytes)
    seconds = ring_wire_s + _hops(hardware, tuned, members)
    if "nvls" in hardware.algorithms:
        # The switches read or write all of the data of each rank, its own part included.
        switch_s = _switch_seconds(hardware, tuned, members, size_bytes)
        seconds = np.where(members.nodes > 1, seconds, np.minimum(seconds, switch_s))
    if "pat" in hardware.algorithms:
        pat_s = ring_wire_s / _PAT_BANDWIDTH + _pat_hops(hardware, tuned, members)
        seconds = np.where(members.near > 1, seconds, np.minimum(seconds, pat_s))
    return seconds


def _pat_hops(hardware: RankHardware, tuned: Constants, members: RankGroup) -> Column:
    """Seconds of the hops of trees with one rank per node."""
    hops = _PAT_LOG_HOPS * np.log2(members.ranks) + _PAT_RANK_HOPS * members.ranks
    latency_s = hops * tuned.inter_node_s
    for level, span in _levels(hardware, members):
        latency_s = latency_s + np.log2(span.pods) * level.latency_s
    return latency_s


def _switch_all_reduce_seconds(
    hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column
) -> Column:
    """Seconds of an all-reduce that the switches of each node reduce, by trees between nodes. Each rank sends all of
    its data for the reduction, and its part of the sum to all others."""
    switch_s = _switch_seconds(hardware, tuned, members, (1 + 1 / members.near) * size_bytes)
    # Data passes the switches and the trees in chunks, so that the slower of both sets the rate.
    trees_s = 2 * _tree_wire(hardware, tuned, members, size_bytes)
    hops_s = 2 * (_tree_hops(hardware, tuned, members) - _inside_hops(tuned, members))
    return np.where(members.nodes > 1, np.maximum(switch_s, trees_s) + hops_s, switch_s)


def _switch_seconds(hardware: RankHardware, tuned: Constants, members: RankGroup, sent_bytes: Column) -> Column:
    """Seconds until each rank has sent `sent_bytes` to the switches of its node, latency included."""
    bytes_per_s = _inside(hardware, members) * tuned.intra_node * _NVLS_BANDWIDTH
    return sent_bytes / bytes_per_s + _NVLS_HOPS * tuned.intra_node_s


def gather(
    hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column, collective: str = "all_gather"
) -> Column:
    """Seconds of an all-gather or, as `collective`, of a reduce_scatter, of `size_bytes` over all ranks; 0 for a single
    rank."""
    seconds = _gather_seconds(hardware, tuned, members, size_bytes)
    seconds = _correct(members.nodes, seconds, hardware.collective_ratio(collective, size_bytes))
    return np.where(members.ranks > 1, seconds, 0.0)


def all_reduce(
    hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column, is_split: Column | None = None
) -> Column:
    """Seconds of an all-reduce of `size_bytes` by the fastest algorithm: a reduce-scatter followed by an all-gather, or
    a pair of trees over nodes, which has fewer hops and may send more across pods; 0 for a single rank.
    `is_split`: 1 if reduce-scatter and all-gather are called instead, for the corrections of probed machines, and for
    reductions in switches, which then save latency only; None: never."""
    tree_wire_s = (_tree_wire if hardware.fabric else _wire)(hardware, tuned, members, size_bytes)
    seconds = 2 * np.minimum(
        _gather_seconds(hardware, tuned, members, size_bytes), tree_wire_s + _tree_hops(hardware, tuned, members)
    )
    split = np.zeros(1) if is_split is None else is_split
    if "nvls" in hardware.algorithms:
        switch_s = _switch_all_reduce_seconds(hardware, tuned, members, size_bytes)
        seconds = np.where((split > 0) | (members.near == 1), seconds, np.minimum(seconds, switch_s))
    ratio = hardware.collective_ratio("all_reduce", size_bytes)
    if is_split is not None:
        halves = [hardware.collective_ratio(name, size_bytes) for name in ("reduce_scatter", "all_gather")]
        ratio = np.where(is_split > 0, (halves[0] + halves[1]) / 2, ratio)
    seconds = _correct(members.nodes, seconds, ratio)
    return np.where(members.ranks > 1, seconds, 0.0)


def exchange(hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column) -> Column:
    """Seconds of an all-to-all; each rank's input is `size_bytes` in total, including the part it keeps."""
    inside_share, between_share = (members.near - 1) / members.ranks, (members.ranks - members.near) / members.ranks
    if _has_rails(hardware, "forwarded"):
        inside_share = inside_share + between_share * members.other_rails
    inside_s = inside_share * size_bytes / (_inside_exchange(hardware, members) * tuned.dispatch)
    between_s = between_share * size_bytes / (hardware.inter_node * tuned.dispatch)
    between_s = between_s * _oversubscribed(hardware, members)
    latency_s = _message_latency(hardware, tuned, members)
    seconds = np.maximum(inside_s, between_s) + latency_s
    seconds = _correct(members.nodes, seconds, hardware.collective_ratio("all_to_all", size_bytes))
    return np.where(members.ranks > 1, seconds, 0.0)


def dispatch(
    hardware: RankHardware, tuned: Constants, members: RankGroup, size_bytes: Column, ranks: Column, nodes: Column
) -> Column:
    """Seconds to dispatch tokens of `size_bytes` in total, each to experts on `ranks` other ranks and `nodes` other
    nodes, which are equally likely. A token is sent once to each node with one of its experts, and from there once to
    each device (DeepSeek-V3, arXiv:2412.19437, section 3.2.2)."""
    inside_s = ranks * size_bytes / (_inside_exchange(hardware, members) * tuned.dispatch)
    between_s = nodes * size_bytes / (hardware.inter_node * tuned.dispatch) * _oversubscribed(hardware, members)
    latency_s = _message_latency(hardware, tuned, members)
    return np.where(members.ranks > 1, np.maximum(inside_s, between_s) + latency_s, 0.0)


def send(
    hardware: RankHardware, tuned: Constants, size_bytes: Column, stride: Column, span: Column | None = None
) -> Column:
    """Seconds to send `size_bytes` to the rank `stride` global ranks away, which all ranks do at the same time. `span`:
    ranks from the first sender to the last receiver, all of whose sends take as long as the slowest; None: unlimited.

    The last min(stride, R) of the R ranks of a pod send out of it, over uplinks with the bandwidth of R ports over the
    oversubscription; all R, if the receivers are on other rails of a network without PXN."""
    is_same_node = stride < hardware.per_node
    job_ranks = hardware.per_node if span is None else span
    distance = np.where(np.isfinite(stride), stride, hardware.per_node)  # infinite: in another node
    peer = torus_time.send_rate(hardware.torus, distance, job_ranks) if hardware.torus else hardware.peer
    inside_s = size_bytes / (peer * tuned.intra_node) + tuned.intra_node_s
    wire_s = size_bytes / (hardware.inter_node * tuned.inter_node)
    between_s, latency_s = wire_s, np.full(1, tuned.inter_node_s)
    changes_rail = np.mod(distance, hardware.per_node) != 0
    if _has_rails(hardware, "forwarded"):
        between_s = np.where(changes_rail, np.maximum(between_s, size_bytes / (peer * tuned.intra_node)), between_s)
        latency_s = latency_s + np.where(changes_rail, tuned.intra_node_s, 0.0)
    for level in hardware.fabric:
        # On rails, the busiest one has a sender in each node of which a rank sends out of the pod.
        senders = stride if level.rails == "none" else np.ceil(stride / hardware.per_node) * hardware.per_node
        crosses, sending = (np.inf if span is None else span) > level.ranks, np.minimum(senders / level.ranks, 1.0)
        if level.rails == "crossed":
            crosses, sending = crosses | changes_rail, np.where(changes_rail, 1.0, sending)
        between_s = np.maximum(between_s, np.where(crosses, level.oversubscription * sending * wire_s, 0.0))
        latency_s = latency_s + np.where(crosses, level.latency_s, 0.0)
    return np.where(is_same_node, inside_s * hardware.collective_ratio("send", size_bytes), between_s + latency_s)
