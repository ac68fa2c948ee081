"""Reserved but unused memory: its pieces, and whether they could have served a request that failed."""

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
    """A request of `asked` bytes that failed at event number `event`, `ns` after the first event; sizes in bytes. `why`
    is a key of words.SHORTAGES, `where` the source location of the request.

    `unused`: all cached free memory; `usable`: the part of it for the request's stream and pool, with a largest piece
    of `largest`; `device_free`: free memory of the device according to the driver."""

    event: int
    ns: int
    asked: int
    device_free: int
    unused: int
    usable: int
    largest: int
    why: str
    where: str


def free_pieces(
    device: SnapshotDevice, lives: Lives, moment: int
) -> list[tuple[ReservedRange, list[tuple[int, int]], int]]:
    """(Range, its free pieces as (start, end) addresses, its active bytes) of each reserved range after `moment`
    events, in order of address."""
    rows = np.flatnonzero(lives.is_active(moment))
    rows = rows[np.argsort(lives.address[rows])]
    blocks = list(zip(lives.address[rows].tolist(), (lives.address[rows] + lives.size[rows]).tolist()))
    ranges, next_block = [], 0
    for part in ranges_at(device, moment):
        free, cursor, active = [], part.start, 0
        while next_block < len(blocks) and blocks[next_block][0] < part.end:
            start, end = max(blocks[next_block][0], part.start), min(blocks[next_block][1], part.end)
            if start > cursor:
                free.append((cursor, start))
            active += max(0, end - max(start, cursor))
            cursor = max(cursor, end)
            next_block += 1
        if cursor < part.end:
            free.append((cursor, part.end))
        ranges.append((part, free, active))
    return ranges


def measure_fragments(device: SnapshotDevice, replayed: Replay, moment: int) -> Fragments:
    """Measures the fragmentation of a device at a moment."""
    lives = replayed.lives
    parts = free_pieces(device, lives, moment)
    sizes = [end - start for _, free, _ in parts for start, end in free]
    blocks = lives.is_active(moment)
    return Fragments(
        reserved=sum(part.end - part.start for part, _, _ in parts),
        active=sum(active for _, _, active in parts),
        unused=sum(sizes),
        pieces=len(sizes),
        largest=max(sizes, default=0),
        split=sum(_total_bytes(free) for _, free, active in parts if active),
        rounding=int((lives.size[blocks] - lives.requested[blocks]).sum()),
        segments=len(parts),
    )


def find_shortages(device: SnapshotDevice, replayed: Replay, location_of_stack: Iterable[str]) -> list[Shortage]:
    """All requests that failed, with the reasons. `location_of_stack[k]` is the source location of stack k."""
    trace, locations = device.trace, list(location_of_stack)
    failed = []
    for event in np.flatnonzero(trace.action == OOM).tolist():
        request, device_free, stream = int(trace.size[event]), int(trace.address[event]), int(trace.stream[event])
        unused = usable = largest = largest_anywhere = 0
        for part, free, _ in free_pieces(device, replayed.lives, event):
            unused += _total_bytes(free)
            largest_piece = max((end - start for start, end in free), default=0)
            largest_anywhere = max(largest_anywhere, largest_piece)
            if part.stream == stream and part.small == (request <= SMALL_POOL_BYTES):
                usable += _total_bytes(free)
                largest = max(largest, largest_piece)
        failed.append(
            Shortage(
                event=event,
                ns=int(trace.ns[event] - trace.ns[0]),
                asked=request,
                device_free=device_free,
                unused=unused,
                usable=usable,
                largest=largest,
                why=_reason(request, largest_anywhere, usable, unused + device_free),
                where=locations[trace.stack[event]],
            )
        )
    return failed


def _reason(request: int, largest_anywhere: int, usable: int, total_free: int) -> str:
    """Why a request failed, as a key of words.SHORTAGES. All in bytes: the largest free piece of any stream and pool,
    the free memory of the request's own, and all free memory with the device's."""
    if largest_anywhere >= request:
        # The allocator would have used the piece if it belonged to the request's stream and pool.
        return "elsewhere"
    if usable >= request:
        return "fragmented"
    return "divided" if total_free >= request else "full"


def _total_bytes(free: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in free)
