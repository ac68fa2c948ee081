"""Unions of intervals, and the parts of an interval outside of them. Times are integer ns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Intervals(NamedTuple):
    """Disjoint intervals in ascending order: `start` and `stop` of each, ns."""

    start: list[int]
    stop: list[int]


def merge_intervals(intervals: Sequence[tuple[int, int]]) -> Intervals:
    """The union of (start, stop) intervals."""
    starts: list[int] = []
    stops: list[int] = []
    for start, stop in sorted(intervals):
        if stops and start <= stops[-1]:
            stops[-1] = max(stops[-1], stop)
        else:
            starts.append(start)
            stops.append(stop)
    return Intervals(starts, stops)


def measure_union_ns(intervals: Sequence[tuple[int, int]]) -> int:
    """The time (ns) that (start, stop) intervals cover together."""
    start, stop = merge_intervals(intervals)
    return sum(stop) - sum(start)


def parts_outside(start: int, stop: int, others: Intervals) -> Iterator[tuple[int, int]]:
    """Yields the (start, stop) parts of [start, stop) that none of the other intervals covers, in ascending order."""
    for index in range(bisect_right(others.stop, start), len(others.start)):
        if others.start[index] >= stop:
            break
        if others.start[index] > start:
            yield start, others.start[index]
        start = max(start, others.stop[index])
    if start < stop:
        yield start, stop
