"""Analytical cost of operations and collectives: (low, expect, high) in ns.

Roofline: Williams, Waterman, Patterson, "Roofline" (CACM 52(4), 2009). Ring collectives: Patarasuk and Yuan, "Bandwidth
optimal all-reduce" (JPDC 69(2), 2009), section 3. A device or link may have a curve of the rate that it reaches
(`reached`: op class or collective -> curve) by the FLOPs or bytes of a call.
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
        words.check_dtype(self.dtype)


def roofline(device: Device, operation: Operation) -> Estimate:
    """Roofline time of all calls of the operation: the longer of arithmetic and memory traffic.

    low: both at peak rate, fully overlapped. expect: arithmetic at the op's reached rate, if the device has its curve.
    high: the same rates without overlap. Raises `UnknownName` if the device has no peak for the dtype.
    """
    if operation.dtype not in device.peak:
        raise UnknownName(f"{device.name} claims no peak for {operation.dtype}.", nearest(operation.dtype, device.peak))
    peak_flops = device.peak[operation.dtype].value
    call_count = max(1, operation.count)
    curve = device.achieved.get(operation.op)
    reached_flops = min(peak_flops, curve.at(operation.flops / call_count)) if curve and operation.flops else peak_flops
    memory_s = operation.bytes / device.bandwidth.value
    low_s = max(operation.flops / peak_flops, memory_s)
    expect_s = max(operation.flops / reached_flops, memory_s)
    high_s = operation.flops / reached_flops + memory_s
    return Estimate(_round_up_ns(low_s), _round_up_ns(expect_s), _round_up_ns(high_s))


def collective(link: Link, name: str, ranks: int, size: int) -> Estimate:
    """A ring collective of `size` bytes over `ranks` ranks of one link. `name`: one of `words.COLLECTIVES`.

    `size` is the whole buffer: a rank's input of an all-reduce or reduce-scatter, its output of an all-gather, or all
    that it sends in an all-to-all. Bandwidth is per rank and direction.
    low: latency and transfer overlap. expect: they add up. high: the two directions of the link share its bandwidth.
    """
    words.check(name, words.COLLECTIVES, "collective")
    if ranks < 1 or size < 0:
        raise BadInput(f"a {name} of {size} bytes over {ranks} ranks has no cost.")
    if ranks == 1:
        return Estimate(0, 0, 0)
    transfers, latencies = _ring_passes(name, ranks)
    curve = link.achieved.get(name)
    bytes_per_s = min(link.bandwidth.value, curve.at(size)) if curve and size else link.bandwidth.value
    transfer_s = transfers * size / bytes_per_s
    latency_s = latencies * link.latency.value
    overlapped_s = max(transfers * size / link.bandwidth.value, latency_s)
    return Estimate(
        _round_up_ns(overlapped_s), _round_up_ns(transfer_s + latency_s), _round_up_ns(2 * transfer_s + latency_s)
    )


def _ring_passes(name: str, ranks: int) -> tuple[float, int]:
    """(traffic of one rank in buffer lengths, number of sequential latencies) of the collective `name` on a ring of
    `ranks`."""
    hop_count = ranks - 1
    if name in ("all_reduce", "barrier"):
        return 2 * hop_count / ranks, 2 * hop_count
    if name in ("all_gather", "reduce_scatter", "all_to_all"):
        return hop_count / ranks, hop_count
    if name in ("broadcast", "reduce"):
        return 1.0, hop_count
    return 1.0, 1


def _round_up_ns(seconds: float) -> int:
    """Seconds -> whole nanoseconds, rounded up."""
    return ceil(seconds * 1e9)
