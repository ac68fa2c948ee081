"""Costs are bounded, monotone, and equal to those of a ring simulated step by step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import refused
from trainyard import machine, words
from trainyard.cost import Operation, collective, roofline
from trainyard.errors import BadInput, UnknownName
from trainyard.machine import Claim, Device, Link, RateCurve

RATE, LATENCY = 1e9, 5e-6


def claim(value: float, unit: str) -> Claim:
    return Claim(value=value, unit=unit, source="a test")


LINK = Link(name="wire", kind="host", bandwidth=claim(RATE, "bytes/s"), latency=claim(LATENCY, "s"))
DEVICE = Device(
    name="box",
    vendor="pretend",
    memory=claim(1e9, "bytes"),
    bandwidth=claim(1e11, "bytes/s"),
    peak={"float32": claim(1e13, "FLOP/s")},
    achieved={"matmul": RateCurve(points=((1e12, 4e12),), claim=claim(4e12, "FLOP/s"))},
)
SIZES = st.integers(0, 2**40)
OPS = st.sampled_from(sorted(words.OP_CLASSES))


class Ring:
    """A simulated ring: in each step every rank sends one chunk to the next rank. Sums the time and tracks the data."""

    def __init__(self, ranks: int, size: int) -> None:
        self.ranks, self.seconds, self.size = ranks, 0.0, size
        # data[r, c]: bit mask of the ranks whose contributions rank r holds in chunk c.
        self.data = np.full((ranks, ranks), 1, np.int64) << np.arange(ranks)[:, None]

    def step(self, first_chunk: int, add: bool) -> None:
        before = self.data.copy()
        for rank in range(self.ranks):
            chunk = (rank + first_chunk) % self.ranks
            to = (rank + 1) % self.ranks
            self.data[to, chunk] = before[rank, chunk] | (before[to, chunk] if add else 0)
        self.seconds += self.size / self.ranks / RATE + LATENCY

    def reduce_scatter(self) -> None:
        for turn in range(self.ranks - 1):
            self.step(-turn, add=True)

    def all_gather(self, first: int = 1) -> None:
        for turn in range(self.ranks - 1):
            self.step(first - turn, add=False)


@given(st.integers(2, 12), SIZES)
def test_ring_all_reduce_costs_the_sum_of_its_steps(ranks, size):
    ring = Ring(ranks, size)
    ring.reduce_scatter()
    assert collective(LINK, "reduce_scatter", ranks, size).expect == pytest.approx(ring.seconds * 1e9, abs=2)
    everything = (1 << ranks) - 1
    assert sorted(np.argwhere(ring.data == everything)[:, 0]) == list(range(ranks)), "each rank owns one full chunk"
    ring.all_gather()
    assert (ring.data == everything).all(), "every rank has every sum"
    assert collective(LINK, "all_reduce", ranks, size).expect == pytest.approx(ring.seconds * 1e9, abs=2)


@given(st.integers(1, 1000), SIZES)
def test_all_reduce_costs_reduce_scatter_plus_all_gather(ranks, size):
    whole = collective(LINK, "all_reduce", ranks, size)
    parts = [collective(LINK, name, ranks, size) for name in ("reduce_scatter", "all_gather")]
    for total, pieces in zip(whole, zip(*parts)):
        assert abs(total - sum(pieces)) <= 2


@given(st.sampled_from(sorted(words.COLLECTIVES)), st.integers(1, 1000), SIZES, SIZES)
def test_collectives_are_bounded_and_monotone_in_bytes(name, ranks, size, more):
    small, large = collective(LINK, name, ranks, size), collective(LINK, name, ranks, size + more)
    assert 0 <= small.low <= small.expect <= small.high
    assert all(smaller <= larger for smaller, larger in zip(small, large))


@given(OPS, st.integers(0, 2**50), SIZES, st.integers(0, 2**40), st.integers(1, 100))
def test_rooflines_are_bounded_and_monotone_in_flops_and_bytes(op, flops, size, more, count):
    def cost(flops: int, size: int):
        return roofline(DEVICE, Operation(op=op, phase="forward", count=count, flops=flops, bytes=size))

    least = cost(flops, size)
    assert 0 <= least.low <= least.expect <= least.high
    for other in (cost(flops + more, size), cost(flops, size + more)):
        assert all(smaller <= larger for smaller, larger in zip(least, other))


@given(st.integers(10**9, 2**50))
def test_matmul_without_traffic_runs_at_the_reached_rate(flops):
    cost = roofline(DEVICE, Operation(op="matmul", phase="forward", count=1, flops=flops, bytes=0))
    assert cost.low == pytest.approx(flops / 1e13 * 1e9, abs=2)
    assert cost.expect == cost.high == pytest.approx(flops / 4e12 * 1e9, abs=2)


@pytest.mark.parametrize("name", sorted(machine.known()))
def test_every_machine_has_costs(name):
    loaded = machine.load(name)
    for dtype in loaded.device.peak:
        work = Operation(op="matmul", phase="forward", count=1, flops=2 * 4096**3, bytes=3 * 4096**2, dtype=dtype)
        assert roofline(loaded.device, work).low > 0
    assert collective(loaded.intra_node, "all_reduce", min(8, loaded.per_node), 2**30).low > 0


def test_unknown_dtypes_and_collectives_are_refused():
    with refused(UnknownName, DEVICE.name, "float8"):
        roofline(DEVICE, Operation(op="matmul", phase="forward", count=1, flops=1, bytes=1, dtype="float8"))
    with refused(UnknownName, "'allreduce'", "'all_reduce'"):
        collective(LINK, "allreduce", 2, 1)
    for ranks, size in ((0, 1), (2, -1)):
        with refused(BadInput, "all_reduce", ranks, size):
            collective(LINK, "all_reduce", ranks, size)


@given(st.dictionaries(st.integers(1, 2**30), st.floats(1, 1e15), min_size=1, max_size=6), st.floats(0, 1e30))
def test_rate_curve_interpolates_its_points(points, size):
    curve = RateCurve(points=tuple(sorted(points.items())), claim=claim(1, "FLOP/s"))
    for known, value in points.items():
        assert curve.at(known) == pytest.approx(value, rel=1e-3)
    assert min(points.values()) * 0.999 <= curve.at(size) <= max(points.values()) * 1.001
    assert curve.at(0) == pytest.approx(curve.points[0][1])
    assert curve.at(1e30) == pytest.approx(curve.points[-1][1])
