"""The reserved addresses at a moment: starts from the final segments and undoes the trace's segment events.

A snapshot shows the segments (memory that the allocator reserved from the driver) at the end of its trace of events.
Moment m is after the first m events. Expandable segments grow and shrink by mapped pages, and adjacent pages form one
range; memory of separate driver allocations is never merged, even if adjacent.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import NamedTuple

from trainyard.trace.memory.snapshot import SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, SnapshotDevice

_SMALL_SEGMENT_BYTES = 2 << 20
"""Segments of this size belong to the small pool."""
_LARGE_PAGE_BYTES = 20 << 20
"""The large pool maps expandable segments in multiples of this."""


class ReservedRange(NamedTuple):
    """Reserved addresses from `start` to before `end`, usable by requests of `stream` to the small pool if `small`,
    else to the large pool."""

    start: int
    end: int
    stream: int
    small: bool


class ReservedRanges:
    """Reserved ranges; they do not overlap in a sound file. `starts`: their start addresses, sorted; `by_start`: start
    address -> range."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.by_start: dict[int, ReservedRange] = {}

    def __iter__(self):
        return (self.by_start[start] for start in self.starts)

    def range_at(self, address: int) -> ReservedRange | None:
        """The range that contains an address; None if it is not reserved."""
        index = bisect_right(self.starts, address) - 1
        if index < 0:
            return None
        candidate = self.by_start[self.starts[index]]
        return candidate if address < candidate.end else None

    def add(self, new: ReservedRange, joins: bool) -> None:
        """Adds a range; merges it with adjacent ranges of the same stream and pool if it `joins`."""
        if joins:
            before = self.range_at(new.start - 1)
            if before and before.end == new.start and before[2:] == new[2:]:  # [2:]: stream and pool
                new = new._replace(start=self._drop(before).start)
            after = self.by_start.get(new.end)
            if after and after[2:] == new[2:]:
                new = new._replace(end=self._drop(after).end)
        if new.start not in self.by_start:
            insort(self.starts, new.start)
        self.by_start[new.start] = new

    def remove(self, start: int, end: int) -> None:
        """Removes the addresses from `start` to before `end`, which lie in one range; the rest of it stays reserved.
        Does nothing if `start` is not reserved."""
        old = self.range_at(start)
        if old is None:
            return
        self._drop(old)
        for part in (old._replace(end=start), old._replace(start=end)):
            if part.start < part.end:
                self.add(part, joins=False)

    def _drop(self, old: ReservedRange) -> ReservedRange:
        """Removes a whole range, and returns the one removed."""
        self.starts.remove(old.start)
        return self.by_start.pop(old.start)


def ranges_at(device: SnapshotDevice, moment: int) -> ReservedRanges:
    """The reserved ranges after the first `moment` events of the trace: those of the final segments, with all later
    segment events undone in reverse order."""
    ranges = ReservedRanges()
    for segment in device.segments:
        ranges.add(
            ReservedRange(
                start=segment.address, end=segment.address + segment.size, stream=segment.stream, small=segment.small
            ),
            joins=segment.expandable,
        )
    trace = device.trace
    later_events = [event for event in _segment_events(device) if event >= moment]
    for event in reversed(later_events):
        undone_action = -int(trace.action[event])  # an event with a negative action is undone
        apply_segment_event(ranges, undone_action, *_address_size_stream(device, event))
    return ranges


def apply_segment_event(ranges: ReservedRanges, action: int, address: int, size: int, stream: int) -> None:
    """Applies a segment event to `ranges`, in place, or undoes it if `action` (`SEGMENT_ALLOC`, ...) is negative.
    `address`, `size`: of the memory that the event reserves or returns."""
    # An event does not state its pool: it follows from the size.
    small = (
        size == _SMALL_SEGMENT_BYTES if abs(action) in (SEGMENT_ALLOC, SEGMENT_FREE) else size % _LARGE_PAGE_BYTES != 0
    )
    if action in (SEGMENT_ALLOC, SEGMENT_MAP, -SEGMENT_FREE, -SEGMENT_UNMAP):
        ranges.add(
            ReservedRange(start=address, end=address + size, stream=stream, small=small),
            joins=abs(action) in (SEGMENT_MAP, SEGMENT_UNMAP),
        )
    else:
        ranges.remove(address, address + size)


def _segment_events(device: SnapshotDevice) -> list[int]:
    """Numbers of the trace's events that reserve or return memory."""
    action = device.trace.action
    return ((action >= SEGMENT_ALLOC) & (action <= SEGMENT_UNMAP)).nonzero()[0].tolist()


def _address_size_stream(device: SnapshotDevice, event: int) -> tuple[int, int, int]:
    """(address, size, stream) of a segment event."""
    trace = device.trace
    return int(trace.address[event]), int(trace.size[event]), int(trace.stream[event])
