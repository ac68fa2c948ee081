"""Collectives in a torus: the closed forms against loads of links counted block by block and message by message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations, product
from math import prod
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from trainyard import machine
from trainyard.machine import Claim, Machine, Torus, TorusAxis
from trainyard.predict.inputs import hardware
from trainyard.predict.inputs.cases import column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware, RankTorus
from trainyard.predict.time import collective_time, torus_time

ATTAINED = Constants(inter_node=1.0, intra_node=1.0, dispatch=1.0, inter_node_s=0.0, intra_node_s=0.0)
"""Whole bandwidths, and no latency: only the loads of links count."""
BYTES = 3.0e9
TRN1, V5P, V6E = machine.load("trn1"), machine.load("tpu-v5p"), machine.load("tpu-v6e")
Link = tuple[int, tuple[int, ...], int]
"""(axis, device that the link leaves, direction)."""
Loads = defaultdict[Link, float]
"""Bytes on each link."""


class Grid(NamedTuple):
    """A job's box of devices of one rank in `torus`. `closed`: whether the ends of each side are linked."""

    sides: tuple[int, ...]
    closed: tuple[bool, ...]
    torus: RankTorus

    @property
    def ranks(self) -> int:
        return prod(self.sides)

    def position(self, rank: int) -> tuple[int, ...]:
        """Coordinates of a rank: the first axis varies fastest."""
        return tuple(rank // prod(self.sides[:axis]) % side for axis, side in enumerate(self.sides))

    def walk(self, start: tuple[int, ...], axis: int, steps: int) -> Iterator[Link]:
        """The links from a device along an axis: `steps` forward, or backward if negative."""
        for step in range(abs(steps)):
            direction = 1 if steps > 0 else -1
            at = list(start)
            at[axis] = (start[axis] + direction * step) % self.sides[axis]
            yield axis, tuple(at), direction

    def paths(self, start: int, end: int, axis: int) -> list[tuple[int, float]]:
        """(steps, share of the bytes) of the shortest ways along an axis: both ways of a ring, if they are equal."""
        steps = end - start
        side = self.sides[axis]
        if not self.closed[axis] or side == 2:
            return [(steps, 1.0)]
        steps %= side
        if 2 * steps == side:
            return [(steps, 0.5), (-steps, 0.5)]
        return [(steps if 2 * steps < side else steps - side, 1.0)]

    def seconds(self, loads: Loads) -> float:
        """Seconds until the link with most bytes over bandwidth has carried them."""
        return max((size / self.torus.bandwidths[link[0]] for link, size in loads.items()), default=0.0)


def groups(grid: Grid, size: int, stride: int) -> Iterator[list[int]]:
    """All groups of `size` ranks that are `stride` apart, as the layout of a job places them."""
    for first in range(grid.ranks):
        if first // stride % size == 0:
            yield [first + stride * index for index in range(size)]


def gather_loads(grid: Grid, size: int, stride: int, order: Sequence[int]) -> Loads:
    """Bytes on each link in an all-gather of `BYTES` that passes the axes in this order, in all groups at the same
    time: each device passes its blocks around the ring, half in each direction, or along the line both ways."""
    loads: Loads = defaultdict(float)
    for members in groups(grid, size, stride):
        positions = [grid.position(rank) for rank in members]
        held_bytes = BYTES / size
        for axis in order:
            lines = defaultdict(list)
            for position in positions:
                lines[position[:axis] + position[axis + 1 :]].append(position)
            for line in lines.values():
                line.sort(key=lambda position: position[axis])
                load_line(grid, loads, line, axis, held_bytes)
            held_bytes *= len(next(iter(lines.values())))
    return loads


def load_line(grid: Grid, loads: Loads, line: list[tuple[int, ...]], axis: int, held_bytes: float) -> None:
    """Adds the bytes of an all-gather along one axis of a group, whose devices on it are `line`."""
    count = len(line)
    if count == 1:
        return
    apart = line[1][axis] - line[0][axis]
    if grid.closed[axis] and apart * count == grid.sides[axis] > 2:
        for position in line:
            for direction in (1, -1):
                for link in grid.walk(position, axis, direction * apart):
                    loads[link] += (count - 1) * held_bytes / 2
        return
    for index in range(count - 1):
        for link in grid.walk(line[index], axis, apart):
            loads[link] += (index + 1) * held_bytes
        for link in grid.walk(line[count - 1 - index], axis, -apart):
            loads[link] += (index + 1) * held_bytes


def fastest_mixture_s(grid: Grid, loads: list[Loads]) -> float:
    """Seconds of the mixture of orders of axes whose busiest link is least loaded."""
    optimize = pytest.importorskip("scipy.optimize")
    links = sorted({link for load in loads for link in load})
    rows = np.array([[load[link] / grid.torus.bandwidths[link[0]] for load in loads] for link in links])
    limits = np.hstack([rows, -np.ones((len(links), 1))])
    shares = np.array([[1.0] * len(loads) + [0.0]])
    cost = np.array([0.0] * len(loads) + [1.0])
    scale = rows.max()
    solution = optimize.linprog(cost, A_ub=limits / scale, b_ub=np.zeros(len(links)), A_eq=shares, b_eq=[1.0])
    return float(solution.x[-1])


def all_to_all_loads(grid: Grid, size: int, stride: int) -> Loads:
    """Bytes on each link in an all-to-all in all groups at the same time, with dimension-ordered shortest routes."""
    loads: Loads = defaultdict(float)
    for members in groups(grid, size, stride):
        for source, target in product(members, members):
            load_route(grid, loads, source, target, BYTES / size)
    return loads


def load_route(grid: Grid, loads: Loads, source: int, target: int, size_bytes: float) -> None:
    at, end = grid.position(source), grid.position(target)
    for axis in range(len(grid.sides)):
        for steps, share in grid.paths(at[axis], end[axis], axis):
            for link in grid.walk(at, axis, steps):
                loads[link] += share * size_bytes
        at = (*at[:axis], end[axis], *at[axis + 1 :])


SIDES = st.lists(st.sampled_from([2, 3, 4, 5, 6, 8]), min_size=1, max_size=3).filter(lambda sides: prod(sides) <= 64)


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """The box of a job in a torus with axes that are as long as its sides, or longer."""
    sides = draw(SIDES)
    sizes = tuple(side * draw(st.sampled_from([1, 1, 2])) for side in sides)
    bandwidths = tuple(draw(st.sampled_from([1e9, 2e9, 5e9])) for _ in sides)
    torus = RankTorus(sizes, bandwidths, 1, 1e15, 0.0, slices=True, cube=0)
    box, closed = torus_time.job_box(torus, float(prod(sides)))
    return Grid(tuple(map(int, box)), closed, torus)


def draw_group(data: st.DataObject, grid: Grid) -> tuple[int, int]:
    """(size, stride) of groups that are boxes."""
    boxes = [
        (size, stride)
        for stride in range(1, grid.ranks)
        for size in range(2, grid.ranks // stride + 1)
        if is_box(grid, size, stride)
    ]
    return data.draw(st.sampled_from(boxes))


def is_box(grid: Grid, size: int, stride: int) -> bool:
    """Whether all groups are products of equally spaced devices on each axis, which do not straddle its ends."""
    for members in groups(grid, size, stride):
        coordinates = [sorted(set(values)) for values in zip(*map(grid.position, members), strict=True)]
        gaps = [{after - before for before, after in pairwise(values)} for values in coordinates]
        if prod(map(len, coordinates)) != size or any(len(each) > 1 for each in gaps):
            return False
    return grid.ranks % (size * stride) == 0


def box_of(grid: Grid, size: int, stride: int) -> torus_time.TorusBox:
    return torus_time.box(grid.torus, column(size), column(stride), column(grid.ranks))


@settings(deadline=None, max_examples=60)
@given(grids(), st.data())
def test_gather_takes_as_long_as_the_best_mixture_of_orders(grid: Grid, data: st.DataObject) -> None:
    size, stride = draw_group(data, grid)
    loads = [gather_loads(grid, size, stride, order) for order in permutations(range(len(grid.sides)))]
    seconds = (size - 1) / size * BYTES / box_of(grid, size, stride).gather[0]
    assert seconds == pytest.approx(fastest_mixture_s(grid, loads), rel=1e-6)


@settings(deadline=None, max_examples=60)
@given(grids(), st.data())
def test_all_to_all_takes_as_long_as_the_busiest_link(grid: Grid, data: st.DataObject) -> None:
    size, stride = draw_group(data, grid)
    seconds = (size - 1) / size * BYTES / box_of(grid, size, stride).exchange[0]
    assert seconds == pytest.approx(grid.seconds(all_to_all_loads(grid, size, stride)), rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(grids(), st.data())
def test_sends_take_at_most_as_long_as_the_busiest_link(grid: Grid, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, grid.ranks - 1))
    loads: Loads = defaultdict(float)
    for rank in range(grid.ranks - stride):
        load_route(grid, loads, rank, rank + stride, BYTES)
    seconds = BYTES / torus_time.send_rate(grid.torus, column(stride), column(grid.ranks))[0]
    assert seconds >= BYTES / max(grid.torus.bandwidths)
    assert grid.seconds(loads) <= 2 * seconds * (1 + 1e-9)
    if stride == 1 and grid.sides[0] > 2:
        assert seconds == pytest.approx(grid.seconds(loads))


@pytest.mark.parametrize(
    ("known", "sides"),
    [
        (V5P, (2, 2, 2)), (V5P, (2, 4, 4)), (V5P, (4, 4, 4)), (V5P, (4, 4, 8)), (V5P, (4, 8, 8)), (V5P, (8, 8, 8)),
        (V5P, (8, 8, 16)), (V5P, (8, 16, 16)), (V5P, (16, 16, 16)), (V5P, (16, 16, 24)),
        (V6E, (2, 2)), (V6E, (2, 4)), (V6E, (4, 4)), (V6E, (4, 8)), (V6E, (8, 8)), (V6E, (8, 16)), (V6E, (16, 16)),
    ],
)  # fmt: skip
def test_slices_have_the_shapes_that_google_offers(known: Machine, sides: tuple[int, ...]) -> None:
    """docs.cloud.google.com/tpu/docs/v5p and v6e; jax-ml/scaling-book tpus.md has which axes are rings."""
    chosen, closed = torus_time.job_box(rank_torus(known), float(prod(sides)))
    assert chosen == sides
    rings = [prod(sides) % 64 == 0] * 3 if known is V5P else [side == 16 for side in sides]
    assert list(closed) == rings


def rank_torus(known: Machine) -> RankTorus:
    torus = hardware.of_machine(known, "bfloat16").torus
    assert torus
    return torus


@pytest.mark.parametrize(
    ("name", "chips", "bisection", "all_reduce"),
    [("tpu-v4", 4096, 24e12, 1.1e15), ("tpu-v5e", 256, 1.6e12, 51.2e12), ("tpu-v6e", 256, 3.2e12, 102.4e12)],
)
def test_pod_has_the_published_bandwidths(name: str, chips: int, bisection: float, all_reduce: float) -> None:
    """docs.cloud.google.com/tpu/docs/v4 and v6e: between the halves of a pod, and of all chips in an all-reduce. Those
    of v4 are rounded."""
    torus = rank_torus(machine.load(name))
    whole = torus_time.box(torus, column(chips), column(1), column(chips))
    # Half of the blocks that each chip of a half receives in an all-to-all come from the other half.
    assert whole.exchange[0] * chips / 2 * (chips / 2) / (chips - 1) == pytest.approx(bisection, rel=0.05)
    assert whole.gather[0] * chips == pytest.approx(all_reduce, rel=0.05)


def with_torus(known: Machine, *axes: tuple[int, float], slices: bool = False, cube: int = 0) -> Machine:
    """The machine with one rank per device and a torus of (size, bandwidth of a link) in a node."""
    torus = Torus(
        axes=tuple(
            TorusAxis(size=size, bandwidth=Claim(value=rate, unit="bytes/s", source="a test")) for size, rate in axes
        ),
        slices=slices,
        cube=cube,
    )
    total = sum(axis.links * axis.bandwidth.value for axis in torus.axes)
    link = replace(
        known.intra_node, torus=torus, bandwidth=Claim(value=total, unit="bytes/s", source="a test"),
        latency=Claim(value=1e-6, unit="s", source="a test"),
    )  # fmt: skip
    device = replace(known.device, ranks=1)
    return replace(known, device=device, per_node=torus.devices, per_host=0, intra_node=link)


def seconds(rank_hardware: RankHardware, size: int, stride: int, job: int, tuned: Constants) -> np.ndarray:
    """Seconds of an all-gather, an all-reduce, an all-to-all and a send."""
    members = collective_time.group(rank_hardware, column(size), column(stride), column(job))
    collectives = (collective_time.gather, collective_time.all_reduce, collective_time.exchange)
    times = [collective(rank_hardware, tuned, members, column(BYTES))[0] for collective in collectives]
    send_s = collective_time.send(rank_hardware, tuned, column(BYTES), column(stride), span=column(job))[0]
    return np.array([*times, send_s])


@given(st.integers(3, 64), st.floats(1e9, 1e11))
def test_torus_of_one_axis_is_a_ring(size: int, rate: float) -> None:
    ring = with_torus(TRN1, (size, rate))
    plain = replace(ring, intra_node=replace(ring.intra_node, torus=None))
    times = [seconds(hardware.of_machine(each, "bfloat16"), size, 1, size, Constants()) for each in (ring, plain)]
    assert times[0][:2] == pytest.approx(times[1][:2], rel=1e-12)


@given(SIDES, st.data(), st.floats(1, 4), st.integers(0, 2), st.booleans())
def test_more_bandwidth_is_never_slower(
    sides: list[int], data: st.DataObject, factor: float, axis: int, slices: bool
) -> None:
    """For groups of any size, also those that are not boxes."""
    size = data.draw(st.integers(2, prod(sides)))
    stride = data.draw(st.integers(1, prod(sides) // size))
    axis %= len(sides)
    rates = [1e9 * (1 + index) for index in range(len(sides))]
    faster = [rate * (factor if index == axis else 1) for index, rate in enumerate(rates)]

    def times(chosen: list[float]) -> np.ndarray:
        known = with_torus(TRN1, *zip(sides, chosen, strict=True), slices=slices)
        return seconds(hardware.of_machine(known, "bfloat16"), size, stride, prod(sides), ATTAINED)

    assert (times(faster) <= times(rates) * (1 + 1e-12)).all()


@pytest.mark.parametrize("job", [64, 512, 4096])
def test_axes_that_are_not_rings_are_never_faster(job: int) -> None:
    """As slices that optical switches close, and without these switches."""
    closed, opened = (hardware.of_machine(with_torus(V5P, *[(16, 1e11)] * 3, slices=True, cube=cube), "bfloat16")
                      for cube in (4, 0))  # fmt: skip
    for size in (2, 4, 8, 64, job):
        for stride in (1, 4, 16, 64):
            if size * stride <= job:
                faster, slower = (seconds(each, size, stride, job, ATTAINED) for each in (closed, opened))
                assert (faster <= slower * (1 + 1e-12)).all()


def test_group_on_one_axis_uses_the_links_of_one_axis() -> None:
    """On a pod of 16x16, a ring of 16 has two of the four links of a chip, both axes have all, and a line of 4 one."""
    torus = rank_torus(V6E)

    def rate(size: int, job: int = 256) -> float:
        return float(torus_time.box(torus, column(size), column(1), column(job)).gather[0])

    assert rate(16) == pytest.approx(2e11)
    assert rate(256) == pytest.approx(4e11)
    assert rate(4) == pytest.approx(1e11)
    assert rate(4, job=16) == pytest.approx(1e11)


def test_ranks_of_a_device_share_its_links() -> None:
    """trn1: 8 ranks are a ring of 4 chips, whose two links per chip are shared by the two ranks of a chip."""
    box = torus_time.box(rank_torus(TRN1), column(8), column(1), column(32))
    assert box.gather[0] == pytest.approx(7 / 3 * 48e9)
    every_other = torus_time.box(rank_torus(TRN1), column(4), column(2), column(32))
    assert every_other.gather[0] == pytest.approx(48e9)
