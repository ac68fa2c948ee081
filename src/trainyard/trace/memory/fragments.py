"""Reserved memory that nothing uses: the pieces it lies in, and whether they could have served what failed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from trainyard.trace.memory.allocator import SMALL
from trainyard.trace.memory.ranges import Range, ranges_at
from trainyard.trace.memory.replay_allocations import Lives, Replay
from trainyard.trace.memory.snapshot import OOM, SnapshotDevice


class Fragments(msgspec.Struct, frozen=True, kw_only=True):
    """At one moment, in bytes. `unused` is reserved less active, `largest` its largest piece, `split` the part of it in
    segments that also hold something (it cannot go back to the driver), `rounding` what active blocks have beyond what
    was asked for."""

    reserved: int
    active: int
    unused: int
    pieces: int
    largest: int
    split: int
    rounding: int
    segments: int


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """A request that failed, `ns` after the first event; sizes in bytes. `why` is a word of words.SHORTAGES.

    `unused` was cached and free at all, `usable` for its stream and pool, in pieces of `largest` at most; `device_free`
    the driver's."""

    event: int
    ns: int
    asked: int
    device_free: int
    unused: int
    usable: int
    largest: int
    why: str
    where: str


def pieces(device: SnapshotDevice, lives: Lives, moment: int) -> list[tuple[Range, list[tuple[int, int]], int]]:
    """Each reserved range with its free (start, end) pieces and its active bytes at a moment."""
    here = np.flatnonzero(lives.held(moment))
    here = here[np.argsort(lives.address[here])]
    blocks = list(zip(lives.address[here].tolist(), (lives.address[here] + lives.size[here]).tolist()))
    found, at = [], 0
    for part in ranges_at(device, moment):
        free, cursor, active = [], part.start, 0
        while at < len(blocks) and blocks[at][0] < part.end:
            start, end = max(blocks[at][0], part.start), min(blocks[at][1], part.end)
            if start > cursor:
                free.append((cursor, start))
            active += max(0, end - max(start, cursor))
            cursor = max(cursor, end)
            at += 1
        if cursor < part.end:
            free.append((cursor, part.end))
        found.append((part, free, active))
    return found


def fragments(device: SnapshotDevice, replayed: Replay, moment: int) -> Fragments:
    lives = replayed.lives
    parts = pieces(device, lives, moment)
    sizes = [end - start for _, free, _ in parts for start, end in free]
    held = lives.held(moment)
    return Fragments(
        reserved=sum(part.end - part.start for part, _, _ in parts),
        active=sum(active for _, _, active in parts),
        unused=sum(sizes),
        pieces=len(sizes),
        largest=max(sizes, default=0),
        split=sum(_total(free) for _, free, active in parts if active),
        rounding=int((lives.size[held] - lives.requested[held]).sum()),
        segments=len(parts),
    )


def shortages(device: SnapshotDevice, replayed: Replay, where: Iterable[str]) -> list[Shortage]:
    """Every request that failed, and why; `where[k]` is the place of stack k."""
    trace, places = device.trace, list(where)
    found = []
    for event in np.flatnonzero(trace.action == OOM).tolist():
        asked, device_free, stream = int(trace.size[event]), int(trace.address[event]), int(trace.stream[event])
        everything = usable = largest = most = 0
        for part, free, _ in pieces(device, replayed.lives, event):
            everything += _total(free)
            biggest = max((end - start for start, end in free), default=0)
            most = max(most, biggest)
            if part.stream == stream and part.small == (asked <= SMALL):
                usable += _total(free)
                largest = max(largest, biggest)
        found.append(
            Shortage(
                event=event,
                ns=int(trace.ns[event] - trace.ns[0]),
                asked=asked,
                device_free=device_free,
                unused=everything,
                usable=usable,
                largest=largest,
                why=_why(asked, most, usable, everything + device_free),
                where=places[trace.stack[event]],
            )
        )
    return found


def _why(asked: int, most: int, usable: int, everywhere: int) -> str:
    if most >= asked:
        # Had it been the right stream's and pool's, the allocator would have taken it.
        return "elsewhere"
    if usable >= asked:
        return "fragmented"
    return "divided" if everywhere >= asked else "full"


def _total(free: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in free)
