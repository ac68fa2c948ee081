"""Collectives over a tree of switches: the closed forms against loads of links counted message by message."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from trainyard import machine
from trainyard.machine import Claim, Machine, SwitchLevel
from trainyard.predict.inputs import hardware
from trainyard.predict.inputs.cases import column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import collective_time
from trainyard.predict.time.collective_time import RankGroup

H100 = machine.load("h100")
PORT = H100.inter_node.bandwidth.value if H100.inter_node else 0.0
ATTAINED = Constants(inter_node=1.0, intra_node=1.0, dispatch=1.0, inter_node_s=0.0, intra_node_s=0.0)
"""Whole bandwidths, and no latency: only the loads of links count."""
BYTES = 3.0e9


class Tree(NamedTuple):
    """A cluster: nodes of `per_node` ranks, and (nodes of a pod, oversubscription) of each level of switches."""

    per_node: int
    nodes: int
    levels: tuple[tuple[int, float], ...]

    @property
    def ranks(self) -> int:
        return self.per_node * self.nodes


class Message(NamedTuple):
    source: int
    target: int
    size_bytes: float


class Rails(NamedTuple):
    """A network whose first level has a switch for each index of a device in its node, `nodes` to a switch. `pxn`:
    messages move to the receiver's index in the sender's node first."""

    tree: Tree
    pxn: bool

    def hardware(self) -> RankHardware:
        known = with_levels(self.tree.per_node, self.tree.levels)
        leaf, *others = known.fabric
        return hardware.of_machine(
            replace(known, fabric=(replace(leaf, kind="rail", pxn=self.pxn), *others)), "bfloat16"
        )


Collective = Callable[[RankHardware, Constants, RankGroup, np.ndarray], np.ndarray]


def on_tree(tree: Tree, latency_s: float = 0.0) -> RankHardware:
    return hardware.of_machine(with_levels(tree.per_node, tree.levels, latency_s), "bfloat16")


def with_levels(per_node: int, levels: Iterable[tuple[int, float]], latency_s: float = 0.0) -> Machine:
    """The H100 with `per_node` devices a node, and links inside a node that never limit."""
    inside = replace(H100.intra_node, bandwidth=claim(1e15, "bytes/s"))
    switches = tuple(
        SwitchLevel(name=f"l{index}", nodes=nodes, oversubscription=claim(ratio), latency=claim(latency_s, "s"))
        for index, (nodes, ratio) in enumerate(levels)
    )
    return replace(H100, per_node=per_node, per_host=0, intra_node=inside, fabric=switches)


def claim(value: float, unit: str = "ratio") -> Claim:
    return Claim(value=value, unit=unit, source="a test")


def busiest_link_s(tree: Tree, messages: Iterable[Message], ports: bool = True) -> float:
    """Seconds until the link with most bytes over bandwidth has carried all messages. `ports`: count those of nodes
    too, whose bytes are spread over the ports of the node."""
    loads: defaultdict[tuple[str, int, int], float] = defaultdict(float)
    for source, target, size_bytes in messages:
        for level, size in enumerate((1, *(nodes for nodes, _ in tree.levels))):
            pods = [rank // tree.per_node // size for rank in (source, target)]
            if pods[0] != pods[1]:
                loads["up", level, pods[0]] += size_bytes
                loads["down", level, pods[1]] += size_bytes
    seconds = [0.0]
    for (_, level, _), size_bytes in loads.items():
        if level or ports:
            size = tree.levels[level - 1][0] if level else 1
            ratio = prod(ratio for _, ratio in tree.levels[:level])
            seconds.append(size_bytes / (size * tree.per_node * PORT / ratio))
    return max(seconds)


def busiest_rail_s(rails: Rails, messages: Iterable[Message]) -> float:
    """As `busiest_link_s`, with uplinks of each rail of a pod of the first level. Ports are those of one device."""
    tree, loads = rails.tree, defaultdict[tuple[object, ...], float](float)
    (pod_nodes, ratio), *_ = tree.levels
    for source, target, size_bytes in messages:
        nodes = [rank // tree.per_node for rank in (source, target)]
        if nodes[0] == nodes[1]:
            continue
        leaving = target if rails.pxn else source
        leaves = [
            (node // pod_nodes, rank % tree.per_node) for node, rank in zip(nodes, (leaving, target), strict=True)
        ]
        loads["port", "up", nodes[0], leaves[0][1]] += size_bytes
        loads["port", "down", nodes[1], leaves[1][1]] += size_bytes
        if leaves[0] != leaves[1]:
            loads["leaf", "up", *leaves[0]] += size_bytes * ratio / pod_nodes
            loads["leaf", "down", *leaves[1]] += size_bytes * ratio / pod_nodes
    upper_s = busiest_link_s(tree, messages, ports=False) if len(tree.levels) > 1 else 0.0
    return max(upper_s, max(loads.values(), default=0.0) / PORT)


def groups(tree: Tree, size: int, stride: int) -> Iterator[list[int]]:
    """All groups of `size` ranks that are `stride` apart, as the layout of a job places them."""
    for first in range(tree.ranks):
        if first // stride % size == 0:
            yield [first + stride * index for index in range(size)]


def ring(tree: Tree, size: int, stride: int) -> Iterator[Message]:
    """Every message of an all-gather of `BYTES` by a ring in each group: (size - 1) steps of BYTES / size."""
    for members in groups(tree, size, stride):
        for position, source in enumerate(members):
            yield Message(source, members[(position + 1) % size], (size - 1) * BYTES / size)


def all_to_all(tree: Tree, size: int, stride: int) -> Iterator[Message]:
    for members in groups(tree, size, stride):
        for source in members:
            yield from (Message(source, target, BYTES / size) for target in members)


def tree_parents(nodes: int) -> Iterator[dict[int, int]]:
    """Node -> parent in the two trees of NCCL, as of `ncclGetDtree` for an even number of nodes: the second tree is the
    mirror image of the first."""
    parents: dict[int, int] = {}
    for node in range(1, nodes):
        low_bit = node & -node
        above = (node ^ low_bit) | (low_bit << 1)
        parents[node] = above if above < nodes else node ^ low_bit
    yield parents
    yield {nodes - 1 - node: nodes - 1 - parent for node, parent in parents.items()}


def trees(tree: Tree, size: int, stride: int) -> Iterator[Message]:
    """Every message of one direction of an all-reduce of `BYTES` by trees over the nodes of each group: on average half
    of each edge's data up and half of it down."""
    near = min(max(tree.per_node // stride, 1), size)
    for members in groups(tree, size, stride):
        heads = members[::near]
        for parents in tree_parents(len(heads)):
            for node, parent in parents.items():
                yield Message(heads[node], heads[parent], BYTES / 4)
                yield Message(heads[parent], heads[node], BYTES / 4)


TREES = st.builds(
    Tree,
    per_node=st.sampled_from([1, 2, 4, 8]),
    nodes=st.sampled_from([16, 32]),
    levels=st.sampled_from([((4, 2.0),), ((4, 4.0),), ((2, 1.0), (8, 3.0)), ((2, 2.0), (4, 1.5)), ((8, 7.5),)]),
)


def draw_group(data: st.DataObject, tree: Tree) -> tuple[int, int, RankGroup]:
    """(size, stride, group) of a layout in which all ranks are in a group of the same kind."""
    stride = data.draw(st.sampled_from([2**power for power in range(10) if 2 ** (power + 1) <= tree.ranks]))
    size = data.draw(st.sampled_from([2**power for power in range(1, 10) if 2**power * stride <= tree.ranks]))
    return size, stride, collective_time.group(on_tree(tree), column(size), column(stride), column(tree.ranks))


@given(TREES, st.data())
def test_ring_takes_as_long_as_the_busiest_uplink(tree: Tree, data: st.DataObject) -> None:
    size, stride, members = draw_group(data, tree)
    uplinks_s = busiest_link_s(tree, ring(tree, size, stride), ports=False)
    ideal_s = collective_time.gather(on_tree(tree._replace(levels=())), ATTAINED, members, column(BYTES))[0]
    seconds = collective_time.gather(on_tree(tree), ATTAINED, members, column(BYTES))[0]
    assert seconds == pytest.approx(max(uplinks_s, ideal_s), rel=1e-9)
    if members.near[0] == 1:  # then every link of the ring is a port
        assert seconds == pytest.approx(busiest_link_s(tree, ring(tree, size, stride)), rel=1e-9)


@given(TREES, st.data())
def test_all_to_all_takes_as_long_as_the_busiest_link(tree: Tree, data: st.DataObject) -> None:
    size, stride, members = draw_group(data, tree)
    seconds = collective_time.exchange(on_tree(tree), ATTAINED, members, column(BYTES))[0]
    counted_s = busiest_link_s(tree, all_to_all(tree, size, stride))
    inside_s = (members.near[0] - 1) / size * BYTES / 1e15
    assert seconds == pytest.approx(max(counted_s, inside_s), rel=1e-9)


@given(TREES, st.data(), st.integers(1, 8))
def test_dispatch_sends_each_token_once_to_each_node(tree: Tree, data: st.DataObject, experts: int) -> None:
    size, stride, members = draw_group(data, tree)
    nodes, near = int(members.nodes[0]), int(members.near[0])
    hit, targets = 1 - (1 - 1 / nodes) ** experts, column((size - 1) * (1 - (1 - 1 / size) ** experts))
    messages = [
        Message(source, target, BYTES * hit)
        for ranks in groups(tree, size, stride)
        for index, source in enumerate(ranks)
        for target in ranks[index % near :: near]  # the rank with the same index in each node
    ]
    seconds = collective_time.dispatch(
        on_tree(tree), ATTAINED, members, column(BYTES), targets, column((nodes - 1) * hit)
    )[0]
    inside_s = targets[0] * BYTES / 1e15
    assert seconds == pytest.approx(max(busiest_link_s(tree, messages), inside_s), rel=1e-9)


@given(TREES, st.data())
def test_send_takes_as_long_as_the_busiest_link(tree: Tree, data: st.DataObject) -> None:
    powers = [2**power for power in range(10) if tree.per_node <= 2**power < tree.ranks]
    stride = data.draw(st.sampled_from(powers))
    messages = [Message(rank, rank + stride, BYTES) for rank in range(tree.ranks - stride)]
    seconds = collective_time.send(on_tree(tree), ATTAINED, column(BYTES), column(stride), span=column(tree.ranks))
    assert seconds[0] == pytest.approx(busiest_link_s(tree, messages), rel=1e-9)


@given(TREES, st.data())
def test_trees_of_nodes_take_as_long_as_the_busiest_uplink(tree: Tree, data: st.DataObject) -> None:
    size, stride, members = draw_group(data, tree)
    assume(members.nodes[0] > 1)
    uplinks_s = busiest_link_s(tree, trees(tree, size, stride), ports=False)
    ideal_s = collective_time._tree_wire(on_tree(tree._replace(levels=())), ATTAINED, members, column(BYTES))[0]
    seconds = collective_time._tree_wire(on_tree(tree), ATTAINED, members, column(BYTES))[0]
    if all(span.per_pod[0] == members.near[0] for span in members.spans):  # each node of the tree is a pod
        ratio = prod(ratio for _, ratio in tree.levels)
        assert seconds == pytest.approx(ratio * ideal_s)
    elif all(span.per_pod[0] > members.near[0] for span in members.spans):
        assert seconds == pytest.approx(max(uplinks_s, ideal_s), rel=1e-9)


@given(TREES, st.data(), st.booleans())
def test_all_to_all_over_rails_takes_as_long_as_the_busiest_link(tree: Tree, data: st.DataObject, pxn: bool) -> None:
    rails = Rails(tree, pxn)
    size, stride, _ = draw_group(data, tree)
    rank_hardware = rails.hardware()
    members = collective_time.group(rank_hardware, column(size), column(stride), column(tree.ranks))
    seconds = collective_time.exchange(rank_hardware, ATTAINED, members, column(BYTES))[0]
    counted_s = busiest_rail_s(rails, list(all_to_all(tree, size, stride)))
    assert seconds == pytest.approx(max(counted_s, float(members.near[0] - 1) / size * BYTES / 1e15), rel=1e-9)


@given(TREES, st.data(), st.booleans())
def test_sends_over_rails_take_as_long_as_the_busiest_link(tree: Tree, data: st.DataObject, pxn: bool) -> None:
    """Also by distances that are not whole nodes; of these, at most half of the messages stay in a node."""
    rails = Rails(tree, pxn)
    stride = data.draw(st.integers(tree.per_node, tree.ranks - 1))
    messages = [Message(rank, rank + stride, BYTES) for rank in range(tree.ranks - stride)]
    seconds = collective_time.send(rails.hardware(), ATTAINED, column(BYTES), column(stride), span=column(tree.ranks))
    assert seconds[0] >= busiest_rail_s(rails, messages) * (1 - 1e-9)
    if stride in (tree.per_node, tree.ranks // 2):
        assert seconds[0] == pytest.approx(busiest_rail_s(rails, messages))


@given(TREES, st.data())
def test_rings_and_aligned_groups_stay_in_their_rails(tree: Tree, data: st.DataObject) -> None:
    """Whether messages could change rails in a node or not, and as in pods."""
    size, stride, members = draw_group(data, tree)
    plain = collective_time.gather(on_tree(tree), ATTAINED, members, column(BYTES))[0]
    for pxn in (True, False):
        rank_hardware = Rails(tree, pxn).hardware()
        on_rails = collective_time.group(rank_hardware, column(size), column(stride), column(tree.ranks))
        assert collective_time.gather(rank_hardware, ATTAINED, on_rails, column(BYTES))[0] == plain
        if stride % tree.per_node == 0:
            times = [collective_time.exchange(each, ATTAINED, group, column(BYTES))[0]
                     for each, group in ((rank_hardware, on_rails), (on_tree(tree), members))]  # fmt: skip
            assert times[0] == times[1]


@given(TREES, st.data(), st.floats(1, 8), st.booleans())
def test_more_oversubscription_of_rails_and_no_pxn_are_never_faster(
    tree: Tree, data: st.DataObject, factor: float, pxn: bool
) -> None:
    """For groups of any size. With an oversubscription of 1, rails are the ideal network."""
    stride = data.draw(st.integers(1, tree.ranks // 2))
    size = data.draw(st.integers(2, tree.ranks // stride))

    def seconds(rank_hardware: RankHardware) -> np.ndarray:
        members = collective_time.group(rank_hardware, column(size), column(stride), column(tree.ranks))
        collectives = (collective_time.gather, collective_time.all_reduce, collective_time.exchange)
        times = [collective(rank_hardware, ATTAINED, members, column(BYTES))[0] for collective in collectives]
        span = column(tree.ranks)
        return np.array([*times, collective_time.send(rank_hardware, ATTAINED, column(BYTES), column(stride), span)[0]])

    full = tree._replace(levels=tuple((nodes, 1.0) for nodes, _ in tree.levels))
    worse = tree._replace(levels=tuple((nodes, factor * ratio) for nodes, ratio in tree.levels))
    ideal, plain, rails, slower, without_pxn = (
        seconds(each)
        for each in (
            on_tree(tree._replace(levels=())), Rails(full, pxn).hardware(), Rails(tree, pxn).hardware(),
            Rails(worse, pxn).hardware(), Rails(tree, pxn=False).hardware(),
        )
    )  # fmt: skip
    assert plain == pytest.approx(ideal, rel=1e-9)
    for better, other in ((plain, rails), (rails, slower), (rails, without_pxn)):
        assert (better <= other * (1 + 1e-9)).all()


@pytest.mark.parametrize(("pxn", "slower"), [(True, 1.0), (False, 4.0 * 7 / 8)])
def test_all_to_all_of_a_single_pod_uses_its_uplinks_only_without_pxn(pxn: bool, slower: float) -> None:
    """8 nodes of 8 devices, a switch for each rail, 4:1: 7 of 8 messages to other nodes are for other rails."""
    rails = Rails(Tree(8, 8, ((8, 4.0),)), pxn)
    members = collective_time.group(rails.hardware(), column(64), column(1), column(64))
    ideal_s = collective_time.exchange(on_tree(Tree(8, 8, ())), ATTAINED, members, column(BYTES))[0]
    seconds = collective_time.exchange(rails.hardware(), ATTAINED, members, column(BYTES))[0]
    assert seconds == pytest.approx(slower * ideal_s)


def test_messages_that_change_rails_in_a_node_use_its_links() -> None:
    """With links in the node that are as fast as a port, they are the busiest: in its node, a rank sends 7 of 64 parts
    of its data to others for themselves and 49 for other nodes."""
    rails = Rails(Tree(8, 8, ((8, 1.0),)), pxn=True).hardware()
    slow = dataclasses.replace(rails, intra_node=column(PORT / 2), peer=column(PORT / 2))
    members = collective_time.group(slow, column(64), column(1), column(64))
    seconds = collective_time.exchange(slow, ATTAINED, members, column(BYTES))[0]
    assert seconds == pytest.approx((7 + 49) / 64 * BYTES / (PORT / 2))


def test_ring_whose_nodes_have_different_indices_changes_rails() -> None:
    """Ranks that are 12 apart on nodes of 8: without PXN every hop of the ring uses the uplinks of its leaf."""
    tree = Tree(8, 48, ((16, 4.0),))
    times: dict[bool, float] = {}
    for pxn in (True, False):
        rank_hardware = Rails(tree, pxn).hardware()
        members = collective_time.group(rank_hardware, column(8), column(12), column(384))
        times[pxn] = collective_time.gather(rank_hardware, ATTAINED, members, column(BYTES))[0]
    counted_s = busiest_rail_s(Rails(tree, pxn=False), list(ring(tree, 8, 12)))
    assert times[False] == pytest.approx(4 * 7 / 8 * BYTES / PORT)
    assert times[False] >= counted_s > times[True]


@given(st.data())
def test_bytes_on_uplinks_are_an_upper_bound_for_pods_of_any_size(data: st.DataObject) -> None:
    """Neither pods of whole groups nor groups of whole pods."""
    per_node, pod_nodes = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.integers(2, 9))
    stride = data.draw(st.sampled_from([1, 2, 4, 8, 12]))
    near = max(per_node // stride, 1)
    size = near * data.draw(st.integers(2, 9))
    blocks = data.draw(st.integers(1, 6))
    tree = Tree(per_node, -(-size * stride * blocks // per_node), ((pod_nodes, 1e3),))
    assume(tree.ranks == size * stride * blocks)
    members = collective_time.group(on_tree(tree), column(size), column(stride), column(tree.ranks))
    ring_s, all_to_all_s, tree_s = (
        busiest_link_s(tree, messages(tree, size, stride), ports=False) for messages in (ring, all_to_all, trees)
    )
    nodes = size / near
    # The ports of a node are taken to send what the other nodes lack, which is less than a ring of ranks sends.
    assert collective_time.gather(on_tree(tree), ATTAINED, members, column(BYTES))[0] >= ring_s * (
        (nodes - 1) / nodes / ((size - 1) / size) * (1 - 1e-9)
    )
    assert collective_time.exchange(on_tree(tree), ATTAINED, members, column(BYTES))[0] >= all_to_all_s * (1 - 1e-9)
    if nodes % 2 == 0 and members.spans[0].per_pod[0] > near:
        tree_wire_s = collective_time._tree_wire(on_tree(tree), ATTAINED, members, column(BYTES))[0]
        assert tree_wire_s >= tree_s * (nodes - 1) / nodes * (1 - 1e-9)


def test_job_in_one_pod_does_not_use_the_uplinks() -> None:
    """Its 8 nodes are in a pod of 12, which does not consist of whole groups of 8."""
    rank_hardware = on_tree(Tree(8, 8, ((12, 100.0),)))
    ideal = on_tree(Tree(8, 8, ()))
    for job_ranks, is_slower in ((64, False), (128, True)):
        times = [
            collective_time.gather(
                each, ATTAINED, collective_time.group(each, column(64), column(1), column(job_ranks)), column(BYTES)
            )[0]
            for each in (ideal, rank_hardware)
        ]
        assert (times[1] > times[0]) == is_slower


@given(st.integers(2, 40), st.sampled_from([1, 8]), st.floats(1, 8))
def test_larger_pods_of_a_job_with_a_single_group_never_slow_its_ring_down(
    nodes: int, per_node: int, oversubscription: float
) -> None:
    times: list[float] = []
    for pod_nodes in range(2, nodes + 1):
        tree = on_tree(Tree(per_node, nodes, ((pod_nodes, oversubscription),)))
        members = collective_time.group(tree, column(nodes * per_node), column(1), column(nodes * per_node))
        times.append(collective_time._wire(tree, ATTAINED, members, column(BYTES))[0])
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("nodes_per_pod", range(2, 65))
def test_no_pod_has_more_edges_of_the_trees(nodes_per_pod: int) -> None:
    for pods in range(2, 20, 2):
        edges: Counter[int] = Counter()
        for parents in tree_parents(nodes_per_pod * pods):
            for node, parent in parents.items():
                if node // nodes_per_pod != parent // nodes_per_pod:
                    edges.update((node // nodes_per_pod, parent // nodes_per_pod))
        nodes = nodes_per_pod * pods
        (span,) = collective_time.group(
            on_tree(Tree(1, nodes, ((nodes_per_pod, 1.0),))), column(nodes), column(1), column(nodes)
        ).spans
        bound = collective_time._crossing_edges(column(nodes_per_pod), span)[0]
        assert max(edges.values()) <= bound
        assert nodes_per_pod & (nodes_per_pod - 1) or max(edges.values()) == bound


def test_ring_over_whole_pods_is_not_slowed_by_mild_oversubscription() -> None:
    """It leaves a pod of 16 nodes once, and each node once: up to 16:1 the uplinks are not the slowest links."""
    ideal = seconds_of_ring(ratio=1.0, stride=8, size=64)
    assert seconds_of_ring(ratio=8.0, stride=8, size=64) == ideal
    assert seconds_of_ring(ratio=32.0, stride=8, size=64) == pytest.approx(2 * ideal)


def test_groups_with_one_rank_per_pod_are_slowed_by_the_whole_ratio() -> None:
    assert seconds_of_ring(ratio=4.0, stride=128, size=4) == pytest.approx(4 * seconds_of_ring(1.0, 128, 4))


def test_groups_in_one_pod_do_not_use_the_uplinks() -> None:
    assert seconds_of_ring(ratio=100.0, stride=8, size=16) == seconds_of_ring(ratio=1.0, stride=8, size=16)


def seconds_of_ring(ratio: float, stride: int, size: int) -> float:
    """Seconds of an all-gather on 64 nodes of 8 devices in pods of 16 nodes."""
    rank_hardware = on_tree(Tree(8, 64, ((16, ratio),)))
    members = collective_time.group(rank_hardware, column(size), column(stride), column(512))
    return float(collective_time.gather(rank_hardware, ATTAINED, members, column(BYTES))[0])


def test_hops_between_pods_add_the_latency_of_their_level() -> None:
    """64 nodes in 16 pods of 4 nodes, in 4 pods of 16: 15 of the ring's 63 hops leave an inner pod, 3 an outer one."""
    tree, hop_s = Tree(8, 64, ((4, 1.0), (16, 1.0))), 1e-6
    plain, slower = on_tree(tree), on_tree(tree, hop_s)
    members = collective_time.group(slower, column(64), column(8), column(512))

    def added_s(collective: Collective) -> float:
        """Seconds that the latency adds to a collective of 1 kB."""
        before, after = (collective(each, Constants(), members, column(1e3))[0] for each in (plain, slower))
        return float(after - before)

    assert added_s(collective_time.gather) == pytest.approx((15 + 3) * hop_s)
    assert added_s(collective_time.exchange) == pytest.approx(2 * hop_s)
    # Trees have fewer hops: two for each of log2(16) + log2(4) levels, up and down.
    assert added_s(collective_time.all_reduce) == pytest.approx(2 * 2 * (4 + 2) * hop_s)
    before, after = (collective_time.send(each, Constants(), column(1e3), column(128)) for each in (plain, slower))
    assert float((after - before)[0]) == pytest.approx(2 * hop_s)


def test_all_reduce_uses_trees_for_small_sizes_only() -> None:
    rank_hardware = on_tree(Tree(8, 64, ((2, 4.0),)))
    members = collective_time.group(rank_hardware, column(64), column(8), column(512))
    sizes = np.array([1e3, 1e10])
    ring_s = 2 * collective_time.gather(rank_hardware, Constants(), members, sizes)
    seconds = collective_time.all_reduce(rank_hardware, Constants(), members, sizes)
    assert seconds[0] < 0.3 * ring_s[0]
    assert seconds[1] == ring_s[1]


@given(
    st.sampled_from([1, 4, 6, 8]), st.integers(1, 300), st.integers(1, 200), st.floats(0, 10),
    st.lists(st.tuples(st.integers(2, 6), st.floats(1, 20)), min_size=1, max_size=3), st.floats(1, 5),
)  # fmt: skip
def test_more_oversubscription_and_latency_are_never_faster(
    per_node: int, size: int, stride: int, exponent: float, levels: list[tuple[int, float]], factor: float
) -> None:
    """For groups and pods of any size, also those that do not divide each other."""
    pod_nodes = np.cumprod([ratio for ratio, _ in levels]).tolist()
    ratios = [ratio for _, ratio in levels]
    networks = [
        on_tree(Tree(per_node, 0, ())),
        on_tree(Tree(per_node, 0, tuple((nodes, 1.0) for nodes in pod_nodes))),
        on_tree(Tree(per_node, 0, tuple(zip(pod_nodes, ratios, strict=True)))),
        on_tree(
            Tree(per_node, 0, tuple((nodes, factor * ratio) for nodes, ratio in zip(pod_nodes, ratios, strict=True)))
        ),
        on_tree(Tree(per_node, 0, tuple(zip(pod_nodes, ratios, strict=True))), latency_s=1e-6),
    ]
    size_bytes = column(10**exponent)

    def seconds(rank_hardware: RankHardware) -> list[float]:
        members = collective_time.group(rank_hardware, column(size), column(stride), column(size * stride * 3))
        times = [
            collective(rank_hardware, Constants(), members, size_bytes)
            for collective in (collective_time.gather, collective_time.all_reduce, collective_time.exchange)
        ]
        times.append(collective_time.send(rank_hardware, Constants(), size_bytes, column(stride)))
        return [float(time[0]) for time in times]

    ideal, full, shared, worse, slower = (np.array(seconds(network)) for network in networks)
    assert ideal == pytest.approx(full, rel=1e-12)
    for better, other in ((full, shared), (shared, worse), (shared, slower)):
        assert (better <= other * (1 + 1e-12)).all()


def test_known_machines_have_no_fabric_and_no_terms_of_it() -> None:
    """The constants are fitted without one: seconds computed by hand from the machine's own numbers."""
    rank_hardware, tuned = hardware.of_machine(H100, "bfloat16"), Constants()
    assert rank_hardware.fabric == ()
    members = collective_time.group(rank_hardware, column(64), column(8), column(512))
    ring_s = 63 / 64 * BYTES / (50e9 * tuned.inter_node)
    expected: dict[Collective, float] = {
        collective_time.gather: ring_s + 63 * tuned.inter_node_s,
        collective_time.all_reduce: 2 * (ring_s + 12 * tuned.inter_node_s),
        collective_time.exchange: 63 / 64 * BYTES / (50e9 * tuned.dispatch) + tuned.intra_node_s + tuned.inter_node_s,
    }
    for collective, seconds in expected.items():
        assert collective(rank_hardware, tuned, members, column(BYTES))[0] == pytest.approx(seconds, rel=1e-12)
