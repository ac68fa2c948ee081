"""Reserved but unused memory: its pieces, and whether they could have served a request that failed.

Moment m is after the first m events of the allocator's trace. A reserved range is memory that the allocator got from
the driver; an active block is allocated, or freed but still in use by a stream; a piece is free memory between active
blocks of a range.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from trainyard.trace.memory.allocator import SMALL_POOL_BYTES
from trainyard.trace.memory.ranges import ReservedRange, ranges_at
from trainyard.trace.memory.replay_allocations import Lives, Replay
from trainyard.trace.memory.snapshot import OOM, SnapshotDevice


class Fragments(msgspec.Struct, frozen=True, kw_only=True):
    """Fragmentation at one moment, in bytes. `unused` is reserved minus active memory, `largest` its largest piece,
    `split` the part of it in segments with active blocks (which cannot be returned to the driver); `rounding`: size of
    the active blocks minus their requests; `pieces`, `segments`: their numbers."""

    reserved: int
    active: int
    unused: int
    pieces: int
    largest: int
    split: int
    rounding: int
    segments: int


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `requested` bytes that failed at event number `event`, `ns` after the first event; sizes in bytes.
    `reason` is a key of words.SHORTAGES, `location` the source location of the request.

    `unused`: all cached free memory; `usable`: the part of it for the request's stream and pool, with a largest piece
    of `largest`; `device_free`: free memory of the device according to the driver."""

    event: int
    ns: int
    requested: int
    device_free: int
    unused: int
    usable: int
    largest: int
    reason: str
    location: str


def free_pieces(
    device: SnapshotDevice, lives: Lives, moment: int
) -> list[tuple[ReservedRange, list[tuple[int, int]], int]]:
    """(Range, its free pieces as (start, end) addresses, its active bytes) of each reserved range after `moment`
    events, in order of address. `lives`: the device's allocations."""
    rows = np.flatnonzero(lives.is_active(moment))
    rows = rows[np.argsort(lives.address[rows])]
    # (start, end) addresses of the active blocks, by start.
    blocks = list(zip(lives.address[rows].tolist(), (lives.address[rows] + lives.size[rows]).tolist()))
    ranges, next_block = [], 0
    for reserved in ranges_at(device, moment):
        # `cursor`: the address up to which the range is covered by pieces and blocks.
        pieces, cursor, active_bytes = [], reserved.start, 0
        while next_block < len(blocks) and blocks[next_block][0] < reserved.end:
            start, end = max(blocks[next_block][0], reserved.start), min(blocks[next_block][1], reserved.end)
            if start > cursor:
                pieces.append((cursor, start))
            active_bytes += max(0, end - max(start, cursor))  # blocks of a damaged file may overlap
            cursor = max(cursor, end)
            next_block += 1
        if cursor < reserved.end:
            pieces.append((cursor, reserved.end))
        ranges.append((reserved, pieces, active_bytes))
    return ranges


def measure_fragments(device: SnapshotDevice, replayed: Replay, moment: int) -> Fragments:
    """Measures the fragmentation of a device after `moment` events. `replayed`: the replay of its trace."""
    lives = replayed.lives
    ranges = free_pieces(device, lives, moment)
    sizes = [end - start for _, pieces, _ in ranges for start, end in pieces]
    is_active = lives.is_active(moment)
    return Fragments(
        reserved=sum(reserved.end - reserved.start for reserved, _, _ in ranges),
        active=sum(active_bytes for _, _, active_bytes in ranges),
        unused=sum(sizes),
        pieces=len(sizes),
        largest=max(sizes, default=0),
        split=sum(_total_bytes(pieces) for _, pieces, active_bytes in ranges if active_bytes),
        rounding=int((lives.size[is_active] - lives.requested[is_active]).sum()),
        segments=len(ranges),
    )


def find_shortages(device: SnapshotDevice, replayed: Replay, location_of_stack: Iterable[str]) -> list[Shortage]:
    """All requests that failed, with the reasons, in order of time. `replayed`: the replay of the device's trace;
    `location_of_stack`: the source location of each stack, by its index."""
    trace, locations = device.trace, list(location_of_stack)
    shortages = []
    for event in np.flatnonzero(trace.action == OOM).tolist():
        # The field `address` of an out-of-memory event holds the device's free bytes.
        request, device_free, stream = int(trace.size[event]), int(trace.address[event]), int(trace.stream[event])
        unused = usable = largest = largest_anywhere = 0
        for reserved, pieces, _ in free_pieces(device, replayed.lives, event):
            unused += _total_bytes(pieces)
            largest_piece = max((end - start for start, end in pieces), default=0)
            largest_anywhere = max(largest_anywhere, largest_piece)
            if reserved.stream == stream and reserved.small == (request <= SMALL_POOL_BYTES):
                usable += _total_bytes(pieces)
                largest = max(largest, largest_piece)
        shortages.append(
            Shortage(
                event=event,
                ns=int(trace.ns[event] - trace.ns[0]),
                requested=request,
                device_free=device_free,
                unused=unused,
                usable=usable,
                largest=largest,
                reason=_reason(request, largest_anywhere, usable, unused + device_free),
                location=locations[trace.stack[event]],
            )
        )
    return shortages


def _reason(request: int, largest_anywhere: int, usable: int, total_free: int) -> str:
    """Why a request of `request` bytes failed, as a key of words.SHORTAGES. `largest_anywhere`: bytes of the largest
    free piece of any stream and pool; `usable`: free bytes of the request's own stream and pool; `total_free`: all free
    bytes, those of the device included."""
    if largest_anywhere >= request:
        # The allocator would have used the piece if it belonged to the request's stream and pool.
        return "elsewhere"
    if usable >= request:
        return "fragmented"
    return "divided" if total_free >= request else "full"


def _total_bytes(pieces: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in pieces)
