"""Analytical cost of operations and collectives: (low, expect, high) in ns.

Roofline: Williams, Waterman, Patterson, "Roofline" (CACM 52(4), 2009). Ring collectives: Patarasuk and
Yuan, "Bandwidth optimal all-reduce" (JPDC 69(2), 2009), section 3.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import msgspec

from trainyard import words
from trainyard.errors import BadInput, UnknownName, nearest
from trainyard.machine import Device, Link


class Estimate(NamedTuple):
    """Nanoseconds: lower bound, expected value, upper bound."""

    low: int
    expect: int
    high: int


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """Work of one op class in one phase of a step, on one rank: `count` calls, `flops` and `bytes` in all."""

    op: str
    phase: str
    count: int
    flops: int
    bytes: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        words.check(self.op, words.OP_CLASSES, "op class")
        words.check(self.phase, words.PHASES, "phase")
        words.check(self.dtype, words.DTYPES, "dtype")


def roofline(device: Device, operation: Operation) -> Estimate:
    """Roofline time of all calls of the operation: the longer of arithmetic and memory traffic.

    low: both at peak rate, fully overlapped. expect: arithmetic at the op's reached rate, if the device has its curve.
    high: the same rates without overlap. Raises `UnknownName` if the device has no peak for the dtype.
    """
    if operation.dtype not in device.peak:
        raise UnknownName(f"{device.name} claims no peak for {operation.dtype}.", nearest(operation.dtype, device.peak))
    peak = device.peak[operation.dtype].value
    calls = max(1, operation.count)
    curve = device.reached.get(operation.op)
    rate = min(peak, curve.at(operation.flops / calls)) if curve and operation.flops else peak
    memory = operation.bytes / device.bandwidth.value
    low = max(operation.flops / peak, memory)
    expect = max(operation.flops / rate, memory)
    high = operation.flops / rate + memory
    return Estimate(_ns(low), _ns(expect), _ns(high))


def collective(link: Link, name: str, ranks: int, size: int) -> Estimate:
    """A ring collective of `size` bytes over `ranks` ranks of one link.

    `size` is the whole buffer: a rank's input of an all-reduce or reduce-scatter, its output of an all-gather, or all
    that it sends in an all-to-all. Bandwidth is per rank and direction.
    low: latency and transfer overlap. expect: they add up. high: the two directions of the link share its bandwidth.
    """
    words.check(name, words.COLLECTIVES, "collective")
    if ranks < 1 or size < 0:
        raise BadInput(f"a {name} of {size} bytes over {ranks} ranks has no cost.")
    if ranks == 1:
        return Estimate(0, 0, 0)
    passes, hops = _ring(name, ranks)
    curve = link.reached.get(name)
    rate = min(link.bandwidth.value, curve.at(size)) if curve and size else link.bandwidth.value
    wire = passes * size / rate
    wait = hops * link.latency.value
    best = max(passes * size / link.bandwidth.value, wait)
    return Estimate(_ns(best), _ns(wire + wait), _ns(2 * wire + wait))


def _ring(name: str, ranks: int) -> tuple[float, int]:
    """(buffer lengths over the slowest link, latencies in sequence) of a ring of `ranks`."""
    hops = ranks - 1
    if name in ("all_reduce", "barrier"):
        return 2 * hops / ranks, 2 * hops
    if name in ("all_gather", "reduce_scatter", "all_to_all"):
        return hops / ranks, hops
    if name in ("broadcast", "reduce"):
        return 1.0, hops
    return 1.0, 1


def _ns(seconds: float) -> int:
    return ceil(seconds * 1e9)
