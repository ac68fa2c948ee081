"""Rates of collectives inside a torus: links between neighbours on several axes, without a switch.

The ranks of a group are a box of the torus: on each axis, `extent` devices that are `stride` apart. The axis of a box
is a ring if it goes all the way around an axis whose ends are linked; otherwise it is a line. The ranks of one device
are an axis too, the innermost, without links. A column has a value per case; bandwidths are those of one rank, its
share of the links of its device.

**All-gather, reduce-scatter.** Each part of the data passes the axes one after another, and parts differ in the order
of axes, so that all axes are used at the same time (Jain and Sabharwal, ICS 2010; jax-ml/scaling-book sharding.md). If
the axes of a set S come first, they carry prod(S) - 1 of the N blocks of data, which is the least they can carry. The
possible loads are the base polytope of this supermodular function, so that the best mixture of orders takes the maximum
over all S of (prod(S) - 1) blocks over the bandwidth of S. A device of a ring receives over two links, the device at
the end of a line over one. If devices of other groups lie between the members, `stride` groups share each link.

**All-to-all** with dimension-ordered routing: an axis of `extent` n carries the messages of all pairs of its devices.
The busiest link of a ring has n / 8 of the bytes that a rank sends, that of a line n / 4: the bisection bandwidth.

**Sends** to the rank a fixed distance away, from all ranks at the same time: a shift on each axis.

If a group is not a box, because its size does not divide the axes, extents and strides are fractions, and the result is
an approximation.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Column
from trainyard.predict.inputs.hardware import RankTorus


class TorusBox(NamedTuple):
    """A group of ranks in a torus. `gather`, `exchange`: bytes/s that each rank receives in an all-gather, and in an
    all-to-all, over whole bandwidths; infinite for a single rank. `hops`: steps of a ring on each axis. `distance_s`:
    seconds of the links between the two ranks farthest apart, beyond the first link."""

    gather: Column
    exchange: Column
    hops: Column
    distance_s: Column


class _BoxAxis(NamedTuple):
    """An axis of a box: `extent` devices that are `stride` apart. `bandwidth`: bytes/s of one link in one direction, of
    each rank that shares it. `is_ring`: 1 if both ends are linked."""

    extent: Column
    stride: Column
    bandwidth: float
    is_ring: Column


def box(torus: RankTorus, ranks: Column, stride: Column, job_ranks: Column) -> TorusBox:
    """The box of groups of `ranks` ranks that are `stride` apart, in a job of `job_ranks` ranks."""
    in_device = np.clip(np.floor(torus.device_ranks / stride), 1.0, ranks)
    axes = list(_axes(torus, ranks, stride, job_ranks))
    members = in_device * np.prod(np.broadcast_arrays(*(axis.extent for axis in axes)), axis=0)
    return TorusBox(
        gather=_gather_rate(torus, in_device, axes, members),
        exchange=_exchange_rate(torus, in_device, axes, members),
        hops=(in_device - 1) + sum(axis.extent - 1 for axis in axes),
        distance_s=torus.hop_s * np.maximum(sum(_diameter(axis) for axis in axes) - 1, 0.0),
    )


def _axes(torus: RankTorus, ranks: Column, stride: Column, job_ranks: Column) -> Iterator[_BoxAxis]:
    """The axes of the box, in the order of ranks."""
    before = np.full(1, float(torus.device_ranks))  # ranks between two neighbours on the axis
    left = ranks / np.clip(np.floor(torus.device_ranks / stride), 1.0, ranks)
    sides, closed = _job_box(torus, job_ranks)
    for side, is_closed, bandwidth in zip(sides, closed, torus.bandwidths, strict=True):
        axis_stride = np.clip(stride / before, 1.0, side)
        extent = np.clip(side / axis_stride, 1.0, left)
        goes_around = (extent * axis_stride > side - 0.5) & (side > 2)
        yield _BoxAxis(
            extent,
            axis_stride,
            bandwidth / torus.device_ranks,
            np.where(goes_around & (is_closed > 0) & (extent > 1), 1.0, 0.0),
        )
        left, before = left / extent, before * side


def _gather_rate(torus: RankTorus, in_device: Column, axes: list[_BoxAxis], members: Column) -> Column:
    """Bytes/s that each rank receives in an all-gather."""
    rates = [(in_device, np.full(1, torus.in_device))]
    rates += [(axis.extent, axis.bandwidth * (1 + axis.is_ring) / axis.stride) for axis in axes]
    block_s = np.zeros(1)  # for one block of data, the part of one rank
    for count in range(1, len(rates) + 1):
        for chosen in combinations(rates, count):
            blocks = np.ones(1)
            for extent, _ in chosen:
                blocks = blocks * extent
            block_s = np.maximum(block_s, (blocks - 1) / sum(rate for _, rate in chosen))
    return np.where(members > 1, (members - 1) / np.where(members > 1, block_s, 1.0), np.inf)


def _exchange_rate(torus: RankTorus, in_device: Column, axes: list[_BoxAxis], members: Column) -> Column:
    """Bytes/s that each rank receives in an all-to-all, limited by the busiest link with dimension-ordered routing."""
    byte_s = (in_device - 1) / members / torus.in_device  # for each byte that a rank sends, its own part included
    for axis in axes:
        byte_s = np.maximum(byte_s, _busiest_link(axis) * axis.stride / axis.bandwidth)
    return np.where(members > 1, (members - 1) / members / np.where(members > 1, byte_s, 1.0), np.inf)


def _busiest_link(axis: _BoxAxis) -> Column:
    """Bytes on the busiest link of an axis in one direction, for each byte that a device on it sends to all others."""
    extent = axis.extent
    is_odd = np.mod(extent, 2) == 1
    ring = np.where(is_odd, (np.square(extent) - 1) / extent, extent) / 8
    line = np.where(is_odd, (np.square(extent) - 1) / extent, extent) / 4
    return np.where(extent > 1, np.where(axis.is_ring > 0, ring, line), 0.0)


def _diameter(axis: _BoxAxis) -> Column:
    """Links between the two devices of an axis that are farthest apart."""
    return axis.stride * np.where(axis.is_ring > 0, np.floor(axis.extent / 2), axis.extent - 1)


def send_rate(torus: RankTorus, stride: Column, job_ranks: Column) -> Column:
    """Bytes/s to the rank `stride` ranks away, which all ranks send to at the same time."""
    byte_s = np.where(stride < torus.device_ranks, 1 / torus.in_device, 0.0)
    before = np.full(1, float(torus.device_ranks))
    for side, bandwidth in zip(_job_box(torus, job_ranks)[0], torus.bandwidths, strict=True):
        # A fraction is the share of ranks that carry into the axis.
        shift = np.mod(stride, before * side) / before
        links = np.minimum(shift, side - shift)
        byte_s = np.maximum(byte_s, np.where(links > 0, np.maximum(links, 1.0), 0.0) * torus.device_ranks / bandwidth)
        before = before * side
    return 1 / np.where(byte_s > 0, byte_s, 1 / torus.in_device)  # whole multiples of the torus are in other nodes


def _job_box(torus: RankTorus, job_ranks: Column) -> tuple[list[Column], list[Column]]:
    """(sides of a job's box, 1 for each side whose ends are linked), by axis."""
    sizes = [np.full(1, float(size)) for size in torus.sizes]
    if not torus.slices:
        return sizes, [np.ones(1)] * len(sizes)
    jobs, index = np.unique(job_ranks, return_inverse=True)
    boxes = [job_box(torus, float(ranks)) for ranks in jobs]
    sides = np.array([sides for sides, _ in boxes])[index.reshape(-1)].T
    closed = np.array([closed for _, closed in boxes], np.float64)[index.reshape(-1)].T
    return list(sides), list(closed)


@lru_cache(maxsize=1 << 10)
def job_box(torus: RankTorus, job_ranks: float) -> tuple[tuple[float, ...], tuple[bool, ...]]:
    """(sides, whether each is a ring) of the slice of a job: the whole torus if the job is larger, or if no box has its
    number of devices."""
    devices = job_ranks / torus.device_ranks
    shapes = list(_shapes(int(devices), torus.sizes)) if devices % 1 == 0 else []
    if not shapes:
        return tuple(map(float, torus.sizes)), (True,) * len(torus.sizes)
    # Sides as equal as possible, so that the bisection is largest; whole cubes if there are some.
    sides = min(shapes, key=lambda shape: (not _is_cubes(torus, shape), max(shape), -min(shape), shape))
    if torus.cube:
        return tuple(map(float, sides)), (_is_cubes(torus, sides),) * len(sides)
    return tuple(map(float, sides)), tuple(side == size for side, size in zip(sides, torus.sizes, strict=True))


def _is_cubes(torus: RankTorus, shape: tuple[int, ...]) -> bool:
    return bool(torus.cube) and all(side % torus.cube == 0 for side in shape)


def _shapes(devices: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The sides of all boxes of so many devices that fit into a torus of `sizes`."""
    if not sizes:
        if devices == 1:
            yield ()
        return
    for side in range(1, sizes[0] + 1):
        if devices % side == 0:
            yield from ((side, *others) for others in _shapes(devices // side, sizes[1:]))
