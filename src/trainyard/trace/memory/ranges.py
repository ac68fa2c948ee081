"""Which addresses are reserved at a moment: the final segments with the trace's segment events undone, then done again.

Expandable segments grow and shrink by mapped pages, and free memory in neighbouring pages is one piece; memory from
separate driver allocations is never joined, neighbours or not.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import NamedTuple

from trainyard.trace.memory.snapshot import SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, SnapshotDevice

_SMALL_SEGMENT = 2 << 20
_LARGE_PAGE = 20 << 20


class Range(NamedTuple):
    """Reserved addresses from `start` to `end`, usable by `stream`'s requests of the small or the large pool."""

    start: int
    end: int
    stream: int
    small: bool


class Ranges:
    """Reserved ranges by address; none overlap in a sound file."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.by_start: dict[int, Range] = {}

    def __iter__(self):
        return (self.by_start[start] for start in self.starts)

    def holding(self, address: int) -> Range | None:
        place = bisect_right(self.starts, address) - 1
        if place < 0:
            return None
        found = self.by_start[self.starts[place]]
        return found if address < found.end else None

    def add(self, new: Range, joins: bool) -> None:
        if joins:
            before = self.holding(new.start - 1)
            if before and before.end == new.start and before[2:] == new[2:]:
                new = new._replace(start=self._drop(before).start)
            after = self.by_start.get(new.end)
            if after and after[2:] == new[2:]:
                new = new._replace(end=self._drop(after).end)
        if new.start not in self.by_start:
            insort(self.starts, new.start)
        self.by_start[new.start] = new

    def remove(self, start: int, end: int) -> None:
        """What is left and right of the hole stays reserved."""
        found = self.holding(start)
        if found is None:
            return
        self._drop(found)
        for part in (found._replace(end=start), found._replace(start=end)):
            if part.start < part.end:
                self.add(part, joins=False)

    def _drop(self, old: Range) -> Range:
        self.starts.remove(old.start)
        return self.by_start.pop(old.start)


def ranges_at(device: SnapshotDevice, moment: int) -> Ranges:
    """What is reserved after `moment` of the trace's events."""
    ranges = Ranges()
    for segment in device.segments:
        ranges.add(
            Range(segment.address, segment.address + segment.size, segment.stream, segment.small), segment.expandable
        )
    trace = device.trace
    later = [place for place in _segment_events(device) if place >= moment]
    for place in reversed(later):
        step(ranges, -int(trace.action[place]), *_where(device, place))
    return ranges


def step(ranges: Ranges, action: int, address: int, size: int, stream: int) -> None:
    """Does a segment event, or undoes it where `action` is negative."""
    small = size == _SMALL_SEGMENT if abs(action) in (SEGMENT_ALLOC, SEGMENT_FREE) else size % _LARGE_PAGE != 0
    if action in (SEGMENT_ALLOC, SEGMENT_MAP, -SEGMENT_FREE, -SEGMENT_UNMAP):
        ranges.add(Range(address, address + size, stream, small), joins=abs(action) in (SEGMENT_MAP, SEGMENT_UNMAP))
    else:
        ranges.remove(address, address + size)


def _segment_events(device: SnapshotDevice) -> list[int]:
    action = device.trace.action
    return ((action >= SEGMENT_ALLOC) & (action <= SEGMENT_UNMAP)).nonzero()[0].tolist()


def _where(device: SnapshotDevice, place: int) -> tuple[int, int, int]:
    trace = device.trace
    return int(trace.address[place]), int(trace.size[place]), int(trace.stream[place])
