"""Replays a device's trace: the lifetime of each allocation, and allocated, active and reserved bytes after each event.

The trace is a ring buffer that loses its beginning, but the snapshot's segments give its end. Memory that is freed, or
there at the end, without having been allocated in the trace was allocated before the trace began. So all totals are
computed back from the end and agree there with the snapshot to the byte (a property test).

The trace has the requested size, not the block size. The replay computes it from the allocator's rules (allocator.py)
and the free memory around the address; blocks still there at the end check the result.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadFile
from trainyard.trace.memory.allocator import AllocatorSettings
from trainyard.trace.memory.ranges import ranges_at, step
from trainyard.trace.memory.snapshot import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    SnapshotDevice,
)

Column = NDArray[np.int64]


class Lives(NamedTuple):
    """One row per allocation: event `start` allocated it (-1: before the trace), `stop` requested its free, `done`
    completed it (the number of events: never). `size`: bytes of the block for `requested` bytes; `stack` and `label`:
    indices as in Snapshot."""

    address: Column
    requested: Column
    size: Column
    start: Column
    stop: Column
    done: Column
    stream: Column
    stack: Column
    label: Column

    def at(self, moment: int) -> NDArray[np.bool_]:
        """Whether each is allocated after `moment` events."""
        return (self.start < moment) & (self.stop >= moment)

    def is_active(self, moment: int) -> NDArray[np.bool_]:
        """Whether each has an active block after `moment` events: allocated, or still in use by another stream."""
        return (self.start < moment) & (self.done >= moment)


class Replay(NamedTuple):
    """`allocated[m]`, `active[m]`, `reserved[m]`, `requested[m]`: bytes at moment m, after m events.

    `checked`: blocks alive at the end whose allocation is in the trace; `agreed`: those whose computed size matches the
    snapshot. `lost`: allocations repeated without a free, or whose state at the end contradicts the trace.
    """

    lives: Lives
    requested: Column
    allocated: Column
    active: Column
    reserved: Column
    checked: int
    agreed: int
    lost: int


def replay(device: SnapshotDevice, rules: AllocatorSettings, source: str) -> Replay:
    """Replays the trace of a device. Raises `BadFile` if totals exceed 64 bits."""
    walk = _Walk(device, rules)
    walk.events()
    walk.end()
    count = len(device.trace.action)
    lives = Lives(*np.array(walk.rows, np.int64).reshape(-1, len(Lives._fields)).T)
    reserved_at_end = sum(segment.size for segment in device.segments)
    total = (
        max(column.sum(dtype=float) for column in (lives.size, lives.requested, device.trace.size)) + reserved_at_end
    )
    if total >= 2**62:
        raise BadFile(f"{source}: its sizes sum to {total:.4g} bytes, not less than 2**62.", "Dump the snapshot again.")
    trace = device.trace
    moves = np.zeros(count + 1, np.int64)
    grows = np.isin(trace.action, (SEGMENT_ALLOC, SEGMENT_MAP))
    shrinks = np.isin(trace.action, (SEGMENT_FREE, SEGMENT_UNMAP))
    moves[1:] = np.where(grows, trace.size, np.where(shrinks, -trace.size, 0))
    reserved = np.cumsum(moves)
    reserved += reserved_at_end - reserved[-1]
    active = totals(lives.size, lives.start, lives.done, count)
    return Replay(
        lives,
        totals(lives.requested, lives.start, lives.stop, count),
        totals(lives.size, lives.start, lives.stop, count),
        active,
        active if rules.exact else reserved,
        walk.checked,
        walk.agreed,
        walk.lost,
    )


def totals(sizes: Column, starts: Column, stops: Column, count: int) -> Column:
    """Bytes alive at each of the `count + 1` moments."""
    moves = np.zeros(count + 2, np.int64)
    np.add.at(moves, starts + 1, sizes)
    np.subtract.at(moves, stops + 1, sizes)
    return np.cumsum(moves[:-1])


class _Walk:
    """Walks through the events in order and tracks the addresses in use; `rows` are the rows of `Lives`."""

    def __init__(self, device: SnapshotDevice, rules: AllocatorSettings) -> None:
        self.device = device
        self.rules = rules
        self.count = len(device.trace.action)
        self.ranges = ranges_at(device, 0)
        self.rows: list[list[int]] = []
        self.live: dict[int, int] = {}
        self.pending: dict[int, int] = {}
        self.used: list[int] = []
        self.checked = self.agreed = self.lost = 0

    def events(self) -> None:
        trace = self.device.trace
        self._before()
        columns = zip(
            trace.action.tolist(),
            trace.address.tolist(),
            trace.size.tolist(),
            trace.stream.tolist(),
            trace.stack.tolist(),
            trace.label.tolist(),
        )
        for event, (action, address, size, stream, stack, label) in enumerate(columns):
            if action == ALLOC:
                for earlier in (self.live, self.pending):
                    if address in earlier:
                        self.lost += earlier is self.live
                        self._close(address, event)
                self._open(address, size, self._block(address, size), event, stream, stack, label)
            elif action == FREE_REQUESTED:
                self._request_free(address, event)
            elif action == FREE_COMPLETED:
                self._close(address, event)
            elif SEGMENT_ALLOC <= action <= SEGMENT_UNMAP:
                step(self.ranges, action, address, size, stream)

    def _before(self) -> None:
        """Adds allocations from before the trace: those freed in it, and final blocks never allocated in it. They
        limit the free memory from which later blocks are split."""
        trace = self.device.trace
        known: set[int] = set()
        not_requested: set[int] = set()
        waiting: list[int] = []
        has_all_requests = True
        columns = (trace.action.tolist(), trace.address.tolist(), trace.size.tolist(), trace.stream.tolist())
        for action, address, size, stream in zip(*columns):
            if action == ALLOC:
                not_requested.add(address)
            elif action == FREE_REQUESTED:
                not_requested.discard(address)
            elif action == FREE_COMPLETED:
                has_all_requests &= address not in not_requested
            if action <= FREE_COMPLETED and address not in known:
                known.add(address)
                if action != ALLOC:
                    self._open(address, size, self.rules.rounded(size), -1, stream, 0, 0)
                if action == FREE_COMPLETED:
                    waiting.append(address)
        # A free that completes without a request in the trace was requested before it, unless requests were not
        # recorded at all (skip_actions).
        for address in waiting if has_all_requests else ():
            self._request_free(address, -1)
        for segment in self.device.segments:
            for block in segment.blocks:
                if block.active and block.address not in known:
                    self._open(block.address, block.requested, block.size, -1, segment.stream, block.stack, 0)
                    if not block.allocated:
                        self._request_free(block.address, -1)

    def _open(self, address: int, requested: int, size: int, start: int, stream: int, stack: int, label: int) -> None:
        self.live[address] = len(self.rows)
        self.rows.append([address, requested, size, start, self.count, self.count, stream, stack, label])
        insort(self.used, address)

    def _request_free(self, address: int, event: int) -> None:
        """Marks a free as requested: the block stays active, perhaps for other streams, until the free completes."""
        row = self.live.pop(address, None)
        if row is not None:
            self.rows[row][_STOP] = event
            self.pending[address] = row

    def _close(self, address: int, event: int) -> None:
        row = self.live.pop(address, None)
        if row is not None:
            self.rows[row][_STOP] = event
        else:
            row = self.pending.pop(address, None)
        if row is not None:
            self.rows[row][_DONE] = event
            del self.used[bisect_left(self.used, address)]

    def _block(self, address: int, size: int) -> int:
        """The block's size: the request rounded up, plus the rest of the free block unless that is split off."""
        rounded = self.rules.rounded(size)
        reserved = self.ranges.holding(address)
        if reserved is None:
            return rounded
        end = reserved.end
        after = bisect_right(self.used, address)
        if after < len(self.used):
            end = min(end, self.used[after])
        return self.rules.taken(rounded, end - address)

    def end(self) -> None:
        """Reconciles the rows with the snapshot, which decides which blocks are there at the end, and their sizes."""
        final = {block.address: block for segment in self.device.segments for block in segment.blocks if block.active}
        for alive in (self.live, self.pending):
            for address, number in alive.items():
                row, block = self.rows[number], final.pop(address, None)
                if block is None:
                    self.lost += 1
                    row[_STOP] = row[_DONE] = self.count - 1
                    continue
                if row[_START] >= 0:
                    self.checked += 1
                    self.agreed += row[_SIZE] == block.size
                row[_SIZE], row[_REQUESTED] = block.size, block.requested
                row[_STACK] = row[_STACK] or block.stack
                row[_STOP] = self.count if block.allocated else min(row[_STOP], self.count - 1)
        for address, block in final.items():
            # Freed in the trace but in use at its end: reallocated without an event (a filtered trace).
            self.lost += 1
            appears = self.count - 1
            self._open(address, block.requested, block.size, appears, 0, block.stack, 0)
            if not block.allocated:
                self._request_free(address, appears)


_REQUESTED, _SIZE, _START, _STOP, _DONE, _STACK = (
    Lives._fields.index(name) for name in ("requested", "size", "start", "stop", "done", "stack")
)
