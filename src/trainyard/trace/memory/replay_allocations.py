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
from trainyard.trace.memory.ranges import apply_segment_event, ranges_at
from trainyard.trace.memory.snapshot import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    AllocatorBlock,
    SnapshotDevice,
)

Column = NDArray[np.int64]


class Lives(NamedTuple):
    """One row per allocation. Numbers of events: `start` allocated it (-1: before the trace), `stop` requested its
    free, `done` completed it (both the number of events: never). `size`: bytes of the block for `requested` bytes;
    `stream`: handle of the CUDA stream; `stack` and `label`: indices as in Snapshot."""

    address: Column
    requested: Column
    size: Column
    start: Column
    stop: Column
    done: Column
    stream: Column
    stack: Column
    label: Column

    def is_allocated(self, moment: int) -> NDArray[np.bool_]:
        """Whether each is allocated after `moment` events."""
        return (self.start < moment) & (self.stop >= moment)

    def is_active(self, moment: int) -> NDArray[np.bool_]:
        """Whether each has an active block after `moment` events: allocated, or still in use by another stream."""
        return (self.start < moment) & (self.done >= moment)


class Replay(NamedTuple):
    """`allocated[m]`, `active[m]`, `reserved[m]`, `requested[m]`: bytes at moment m, after m events.

    `checked_blocks`: number of blocks alive at the end whose allocation is in the trace; `matching_blocks`: those whose
    computed size is that of the snapshot. `inconsistencies`: number of allocations repeated without a free, or whose
    state at the end contradicts the trace.
    """

    lives: Lives
    requested: Column
    allocated: Column
    active: Column
    reserved: Column
    checked_blocks: int
    matching_blocks: int
    inconsistencies: int


def replay(device: SnapshotDevice, settings: AllocatorSettings, source: str) -> Replay:
    """Replays the trace of a device. `settings`: the allocator's rules for block sizes; `source`: the file's name, for
    errors. Raises `BadFile` if totals exceed 64 bits."""
    walk = _TraceReplay(device, settings)
    walk.replay_events()
    walk.reconcile_with_snapshot()
    event_count = len(device.trace.action)
    lives = Lives(*np.array(walk.lives_rows, np.int64).reshape(-1, len(Lives._fields)).T)
    reserved_at_end = sum(segment.size for segment in device.segments)
    total_bytes = (
        max(column.sum(dtype=float) for column in (lives.size, lives.requested, device.trace.size)) + reserved_at_end
    )
    if total_bytes >= 2**62:
        raise BadFile(
            f"{source}: its sizes sum to {total_bytes:.4g} bytes, not less than 2**62.", "Dump the snapshot again."
        )
    trace = device.trace
    reserved_delta = np.zeros(event_count + 1, np.int64)
    grows = np.isin(trace.action, (SEGMENT_ALLOC, SEGMENT_MAP))
    shrinks = np.isin(trace.action, (SEGMENT_FREE, SEGMENT_UNMAP))
    reserved_delta[1:] = np.where(grows, trace.size, np.where(shrinks, -trace.size, 0))
    reserved = np.cumsum(reserved_delta)
    reserved += reserved_at_end - reserved[-1]  # the total at the end is known, the one at the beginning is not
    active = bytes_at_moments(lives.size, lives.start, lives.done, event_count)
    return Replay(
        lives=lives,
        requested=bytes_at_moments(lives.requested, lives.start, lives.stop, event_count),
        allocated=bytes_at_moments(lives.size, lives.start, lives.stop, event_count),
        active=active,
        reserved=active if settings.exact else reserved,
        checked_blocks=walk.checked_blocks,
        matching_blocks=walk.matching_blocks,
        inconsistencies=walk.inconsistencies,
    )


def bytes_at_moments(sizes: Column, starts: Column, stops: Column, event_count: int) -> Column:
    """Bytes alive after m events, for m = 0 .. `event_count`. `sizes`: bytes of each allocation; `starts`, `stops`:
    number of the event that allocated it (-1: before the trace) and of the one that freed it (`event_count`: none)."""
    delta = np.zeros(event_count + 2, np.int64)
    np.add.at(delta, starts + 1, sizes)
    np.subtract.at(delta, stops + 1, sizes)
    return np.cumsum(delta[:-1])


class _TraceReplay:
    """Walks through the events in order and tracks the addresses in use.

    `lives_rows`: rows with the columns of `Lives`. `allocated_row`: address -> row, while allocated. `freeing_row`:
    address -> row, between the request and the completion of its free. `active_addresses`: the keys of both, sorted.
    `ranges`: address ranges that the allocator has reserved. The counts are those of `Replay`. An event's number is its
    index in the trace.
    """

    def __init__(self, device: SnapshotDevice, settings: AllocatorSettings) -> None:
        """Starts without lives, with the address ranges that are reserved when the trace begins."""
        self.device = device
        self.settings = settings
        self.event_count = len(device.trace.action)
        self.ranges = ranges_at(device, 0)
        self.lives_rows: list[list[int]] = []
        self.allocated_row: dict[int, int] = {}
        self.freeing_row: dict[int, int] = {}
        self.active_addresses: list[int] = []
        self.checked_blocks = self.matching_blocks = self.inconsistencies = 0

    def replay_events(self) -> None:
        """Applies all events of the trace, in order."""
        trace = self.device.trace
        self._add_earlier_allocations()
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
                for earlier in (self.allocated_row, self.freeing_row):
                    if address in earlier:
                        self.inconsistencies += earlier is self.allocated_row
                        self._complete_free(address, event)
                self._add_allocation(
                    address,
                    requested=size,
                    size=self._block_size(address, size),
                    start=event,
                    stream=stream,
                    stack=stack,
                    label=label,
                )
            elif action == FREE_REQUESTED:
                self._request_free(address, event)
            elif action == FREE_COMPLETED:
                self._complete_free(address, event)
            elif SEGMENT_ALLOC <= action <= SEGMENT_UNMAP:
                apply_segment_event(self.ranges, action, address, size, stream)

    def _add_earlier_allocations(self) -> None:
        """Adds allocations from before the trace: those freed in it, and final blocks never allocated in it. They
        limit the free memory from which later blocks are split."""
        trace = self.device.trace
        addresses: set[int] = set()  # that appear in an earlier event
        not_requested_yet: set[int] = set()
        completed_only: list[int] = []
        has_all_requests = True
        columns = (trace.action.tolist(), trace.address.tolist(), trace.size.tolist(), trace.stream.tolist())
        for action, address, size, stream in zip(*columns):
            if action == ALLOC:
                not_requested_yet.add(address)
            elif action == FREE_REQUESTED:
                not_requested_yet.discard(address)
            elif action == FREE_COMPLETED:
                has_all_requests &= address not in not_requested_yet
            if action <= FREE_COMPLETED and address not in addresses:
                addresses.add(address)
                if action != ALLOC:
                    self._add_allocation(
                        address, requested=size, size=self.settings.round_up(size), start=-1, stream=stream
                    )
                if action == FREE_COMPLETED:
                    completed_only.append(address)
        # A free that completes without a request in the trace was requested before it, unless requests were not
        # recorded at all (skip_actions).
        for address in completed_only if has_all_requests else ():
            self._request_free(address, -1)
        for segment in self.device.segments:
            for block in segment.blocks:
                if block.active and block.address not in addresses:
                    self._add_final_block(block, segment.stream, start=-1)

    def _add_allocation(
        self, address: int, *, requested: int, size: int, start: int, stream: int, stack: int = 0, label: int = 0
    ) -> None:
        """Adds the row of an allocation that lives until the trace ends, unless a later event frees it. `requested`,
        `size`: bytes asked for and bytes of the block; `start`: number of the event; `stack`, `label`: indices as in
        Snapshot, 0 for none."""
        self.allocated_row[address] = len(self.lives_rows)
        self.lives_rows.append(
            [address, requested, size, start, self.event_count, self.event_count, stream, stack, label]
        )
        insort(self.active_addresses, address)

    def _add_final_block(self, block: AllocatorBlock, stream: int, start: int) -> None:
        """Adds the row of a block that is active at the end of the trace, but was not allocated by its events.
        `stream`: that of its segment; `start`: number of the event that is taken to have allocated it, -1 for before
        the trace."""
        self._add_allocation(
            block.address, requested=block.requested, size=block.size, start=start, stream=stream, stack=block.stack
        )
        if not block.allocated:
            self._request_free(block.address, start)

    def _request_free(self, address: int, event: int) -> None:
        """Marks a free as requested by event number `event`: the block at `address` stays active, perhaps for other
        streams, until the free completes. Does nothing if it is not allocated."""
        row = self.allocated_row.pop(address, None)
        if row is not None:
            self.lives_rows[row][_STOP] = event
            self.freeing_row[address] = row

    def _complete_free(self, address: int, event: int) -> None:
        """Marks a block as free from `event` on; its free counts as requested then too, unless it was before."""
        row = self.allocated_row.pop(address, None)
        if row is not None:
            self.lives_rows[row][_STOP] = event
        else:
            row = self.freeing_row.pop(address, None)
        if row is not None:
            self.lives_rows[row][_DONE] = event
            del self.active_addresses[bisect_left(self.active_addresses, address)]

    def _block_size(self, address: int, size: int) -> int:
        """Bytes of the block for a request of `size` bytes at `address`: the request rounded up, plus the rest of the
        free block unless that is split off. The free block ends at the next active address, or with its range."""
        rounded = self.settings.round_up(size)
        reserved = self.ranges.range_at(address)
        if reserved is None:
            return rounded
        end = reserved.end
        next_active = bisect_right(self.active_addresses, address)
        if next_active < len(self.active_addresses):
            end = min(end, self.active_addresses[next_active])
        return self.settings.block_bytes(rounded, end - address)

    def reconcile_with_snapshot(self) -> None:
        """Corrects `lives_rows`, in place, by the snapshot, which lists the blocks that exist at the end, and their
        sizes.

        `_STOP` is the event that requested the free and `_DONE` the one that completed it; both are `event_count` if
        there was none. Counts the blocks whose computed size agrees (`matching_blocks`) of those compared
        (`checked_blocks`), and the contradictions between trace and snapshot (`inconsistencies`).
        """
        final_blocks = {
            block.address: (block, segment.stream)
            for segment in self.device.segments
            for block in segment.blocks
            if block.active
        }
        last_event = self.event_count - 1
        for row_by_address in (self.allocated_row, self.freeing_row):
            for address, row_index in row_by_address.items():
                row, final = self.lives_rows[row_index], final_blocks.pop(address, None)
                if final is None:  # freed, or its free completed, without an event
                    self.inconsistencies += 1
                    row[_STOP], row[_DONE] = min(row[_STOP], last_event), last_event
                    continue
                block, _ = final
                if row[_START] >= 0:
                    self.checked_blocks += 1
                    self.matching_blocks += row[_SIZE] == block.size
                row[_SIZE], row[_REQUESTED] = block.size, block.requested
                row[_STACK] = row[_STACK] or block.stack
                row[_STOP] = self.event_count if block.allocated else min(row[_STOP], last_event)
        for block, stream in final_blocks.values():
            # Freed in the trace but in use at its end: reallocated without an event (a filtered trace).
            self.inconsistencies += 1
            self._add_final_block(block, stream, start=last_event)


_REQUESTED, _SIZE, _START, _STOP, _DONE, _STACK = (
    Lives._fields.index(name) for name in ("requested", "size", "start", "stop", "done", "stack")
)
