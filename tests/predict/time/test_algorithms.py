"""Algorithms that collectives choose from: which is chosen, and that a choice is never slower than a ring."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.refused import refused
from trainyard import machine
from trainyard.errors import BadInput
from trainyard.machine import Machine
from trainyard.predict.inputs import hardware
from trainyard.predict.inputs.cases import column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import collective_time

H100, GB200 = machine.load("h100"), machine.load("gb200")
TUNED = Constants()


def with_algorithms(known: Machine, *, nvls: bool = False, pat: bool = False) -> RankHardware:
    assert known.inter_node
    known = replace(
        known,
        intra_node=replace(known.intra_node, algorithms=("nvls",) if nvls else ()),
        inter_node=replace(known.inter_node, algorithms=("pat",) if pat else ()),
    )
    return hardware.of_machine(known, "bfloat16")


def times(rank_hardware: RankHardware, ranks: int, stride: int, size_bytes: float) -> list[float]:
    """Seconds of an all-gather, an all-reduce, and one that is split into a reduce-scatter and an all-gather."""
    members = collective_time.group(rank_hardware, column(ranks), column(stride), column(ranks * stride))
    sizes = column(size_bytes)
    return [
        float(seconds[0])
        for seconds in (
            collective_time.gather(rank_hardware, TUNED, members, sizes),
            collective_time.all_reduce(rank_hardware, TUNED, members, sizes),
            collective_time.all_reduce(rank_hardware, TUNED, members, sizes, is_split=np.ones(1)),
        )
    ]


@given(
    st.sampled_from([H100, GB200]), st.integers(2, 300), st.integers(1, 100), st.floats(0, 11), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_choice_of_algorithms_is_never_slower(
    known: Machine, ranks: int, stride: int, exponent: float, nvls: bool, pat: bool
) -> None:
    rings = times(with_algorithms(known), ranks, stride, 10**exponent)
    chosen = times(with_algorithms(known, nvls=nvls, pat=pat), ranks, stride, 10**exponent)
    assert all(fastest <= ring for fastest, ring in zip(chosen, rings, strict=True))


def test_switches_reduce_each_byte_once() -> None:
    """8 ranks send all of their data and an eighth of the sum, at NCCL's share of the rate of a ring, which sends 7/8
    of the data twice; a reduce-scatter and an all-gather save nothing."""
    ring, switch = (times(with_algorithms(H100, nvls=nvls), 8, 1, 1e10) for nvls in (False, True))
    assert switch[1] / ring[1] == pytest.approx((9 / 8) / 0.74 / (2 * 7 / 8), rel=0.01)
    assert (switch[0], switch[2]) == (ring[0], ring[2])


def test_latency_of_switches_does_not_grow_with_the_ranks() -> None:
    few, many = (times(with_algorithms(GB200, nvls=True), ranks, 1, 1.0) for ranks in (16, 72))
    assert few == pytest.approx(many, rel=1e-3)
    assert few[1] == pytest.approx(25 / 3.4 * TUNED.intra_node_s, rel=1e-3)
    assert times(with_algorithms(GB200), 72, 1, 1.0)[0] == pytest.approx(71 * TUNED.intra_node_s, rel=1e-3)


def test_all_reduce_over_nodes_is_bound_by_the_ports_of_its_nodes() -> None:
    ring, switch = (times(with_algorithms(H100, nvls=nvls), 64, 1, 1e10) for nvls in (False, True))
    port_bytes_per_s = 50e9 * 8 * TUNED.inter_node
    assert switch[1] == pytest.approx(2 * 7 / 8 * 1e10 / port_bytes_per_s, rel=0.01)
    assert switch[1] <= ring[1]


def test_trees_with_one_rank_per_node_gather_small_sizes() -> None:
    """A ring of 256 nodes has 255 hops, NCCL's trees 8 / 3.5 + 256 x 0.2; of large sizes the ring is faster."""
    small, large = ([times(with_algorithms(H100, pat=pat), 256, 8, size)[0] for pat in (False, True)]
                    for size in (1.0, 1e11))  # fmt: skip
    assert small == pytest.approx([255 * TUNED.inter_node_s, (8 / 3.5 + 256 * 0.2) * TUNED.inter_node_s], rel=1e-3)
    assert large[0] == large[1]
    several_per_node = [times(with_algorithms(H100, pat=pat), 256, 4, 1.0)[0] for pat in (False, True)]
    assert several_per_node[0] == several_per_node[1]


@pytest.mark.parametrize(
    ("name", "inside", "between", "words"),
    [
        ("trn2", ("nvls",), (), ["NeuronLink-v3", "nvls", "torus"]),
        ("mi300x", ("nvls",), (), ["xGMI", "nvls", "peer_bandwidth"]),
        ("h100", (), ("nvls",), ["InfiniBand", "nvls", "[intra_node]"]),
        ("h100", ("pat",), (), ["NVLink", "pat", "[inter_node]"]),
    ],
)
def test_algorithm_that_a_link_cannot_have_is_refused(
    name: str, inside: tuple[str, ...], between: tuple[str, ...], words: list[str]
) -> None:
    known = machine.load(name)
    assert known.inter_node
    with refused(BadInput, *words):
        replace(
            known,
            intra_node=replace(known.intra_node, algorithms=inside),
            inter_node=replace(known.inter_node, algorithms=between),
        )


def test_known_machines_choose_between_rings_and_trees() -> None:
    """Their constants are fitted with these."""
    for name in machine.known():
        known = machine.load(name)
        for link in (known.intra_node, known.inter_node):
            assert link is None or link.algorithms == ()
