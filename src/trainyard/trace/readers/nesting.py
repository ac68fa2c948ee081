"""Nesting of host spans: the parent of each span, and the innermost span at each instant of a thread."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I32, I64, HostSpans
from trainyard.trace.readers.kineto.native import library

_MAX_ROUNDING_NS = 2_000
"""ns: timestamps in whole microseconds are off by up to 1 us at either end."""
_BLOCK_ROWS = 1 << 14
_MAX_SHALLOW_DEPTH = 64
"""Depth up to which the ancestors of some rows are followed, instead of those of all rows."""
_MAX_CANDIDATES = 256
"""Open spans considered as a parent: there may be thousands of spans that overlap without being nested."""


def nest(start: I64, stop: I64, thread: I32) -> tuple[I32, I64]:
    """Parents of m spans sorted by (start, longest first), -1 for top-level spans, and stops clamped to the parent's.

    Timestamps are rounded, so a child may seem to end up to one tick after its parent; it is clamped. A span that ends
    later than that is not a child (annotations of asynchronous work overlap freely) and keeps its stop.
    """
    native = library()
    if native is None or not len(start):
        return _nest_in_python(start, stop, thread)
    start, stops, thread = np.ascontiguousarray(start), stop.copy(), np.ascontiguousarray(thread)
    parents = np.empty(len(start), np.int32)
    columns = (start.ctypes.data, stops.ctypes.data, thread.ctypes.data)
    if not native.nest(len(start), *columns, int(thread.max()), _MAX_ROUNDING_NS, parents.ctypes.data):
        raise MemoryError
    return parents, stops


def _nest_in_python(start: I64, stop: I64, thread: I32) -> tuple[I32, I64]:
    """Parents and clamped stops of spans sorted by (start, longest first), without compiled code: the innermost span of
    the thread that is still open and ends no earlier, up to rounding."""
    # Typed arrays: a list would hold one object per row.
    parents, stops = array("i", [-1]) * len(start), array("q", stop.tobytes())
    open_rows_by_thread: dict[int, list[int]] = {}
    for row, (begin, end, thread_number) in enumerate(iterate_rows(start, stop, thread)):
        stack = open_rows_by_thread.get(thread_number)
        if stack is None:
            stack = open_rows_by_thread[thread_number] = []
        while stack and stops[stack[-1]] <= begin:
            stack.pop()
        for enclosing in stack[: -_MAX_CANDIDATES - 1 : -1]:
            if end <= stops[enclosing] + _MAX_ROUNDING_NS:
                parents[row] = enclosing
                if end > stops[enclosing]:
                    stops[row] = stops[enclosing]
                break
        stack.append(row)
    return np.array(parents, np.int32), np.array(stops, np.int64)


def iterate_rows(*columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """Iterates over the rows of some columns as Python numbers, converted a few thousand at a time."""
    for first in range(0, len(columns[0]), _BLOCK_ROWS):
        yield from zip(*(column[first : first + _BLOCK_ROWS].tolist() for column in columns))


def nearest_ancestor(is_wanted: NDArray[np.bool_], parent: I32) -> I32:
    """For each host row, the row of its nearest ancestor for which `is_wanted` is true, -1 if it has none. `parent`:
    row of each row's parent, -1 if none."""
    # One more row at the end, which the index -1 selects, makes row -1 its own parent and ends every search.
    ancestor, is_end = np.append(parent, -1).astype(np.int32), np.append(is_wanted, True)
    while (rows := np.flatnonzero(~is_end[ancestor])).size:
        # Pointer jumping: the ancestor's own pointer has moved up too, so the distance doubles.
        ancestor[rows] = ancestor[ancestor[rows]]
    return ancestor[:-1]


def outermost_rows(is_wanted: NDArray[np.bool_], parent: I32) -> NDArray[np.int64]:
    """The wanted host rows that are not inside another wanted row, in ascending order. `parent`: row of each row's
    parent, -1 if none. Follows all parents together, level by level, up to a depth."""
    rows = np.flatnonzero(is_wanted)
    is_outermost = np.ones(len(rows), bool)
    pending, ancestor = np.arange(len(rows)), parent[rows]  # positions in `rows`, and the ancestor row of each
    for _ in range(_MAX_SHALLOW_DEPTH):
        is_inside = (ancestor >= 0) & is_wanted[ancestor]
        is_outermost[pending[is_inside]] = False
        continues = (ancestor >= 0) & ~is_inside
        pending, ancestor = pending[continues], parent[ancestor[continues]]
        if not len(pending):
            return rows[is_outermost]
    return rows[nearest_ancestor(is_wanted, parent)[rows] < 0]


def split_by_innermost(start: I64, stop: I64, parent: I32, rows: I64) -> tuple[I64, I32]:
    """Splits a thread into intervals by innermost span. Returns (edge, owner): interval i is [edge[i], edge[i + 1]) and
    its innermost span is row owner[i], -1 if no span is open. `rows`: the thread's rows, in the tables' order.
    """
    rows = rows[stop[rows] > start[rows]]
    n = len(rows)
    # At one instant spans close inner first (a later row is inside), then open outer first.
    inner_first = rows[::-1]
    closing = inner_first[np.argsort(stop[inner_first], kind="stable")]
    opened, closed = start[rows], stop[closing]
    edges, owner = np.empty(2 * n, np.int64), np.empty(2 * n, np.int32)
    for times, owners, positions in (
        (opened, rows, np.arange(n) + np.searchsorted(closed, opened, "right")),
        (closed, parent[closing], np.arange(n) + np.searchsorted(opened, closed, "left")),
    ):
        edges[positions], owner[positions] = times, owners
    return edges, owner


class InnermostSpans(NamedTuple):
    """A thread's innermost spans: from edges[i] on, span owner[i] is innermost, -1 for none."""

    edges: I64
    owner: I32

    def edges_in(self, start: I64, stop: I64) -> int:
        """The total number of edges strictly inside the stretches [start, stop), ns."""
        return int((np.searchsorted(self.edges, stop, "left") - np.searchsorted(self.edges, start, "right")).sum())

    def between(self, first: int, last: int) -> I64:
        """The edges (ns) from `first` to `last`, both included."""
        return self.edges[np.searchsorted(self.edges, first, "left") : np.searchsorted(self.edges, last, "right")]

    def at(self, time: I64) -> I32:
        """The host row of the innermost span at each time (ns); -1 if no span is open."""
        if not len(self.edges):
            return np.full(len(time), -1, np.int32)
        index = np.searchsorted(self.edges, time, "right") - 1
        return np.where(index >= 0, self.owner[np.maximum(index, 0)], -1).astype(np.int32)


def innermost_spans(host: HostSpans, thread: int) -> InnermostSpans:
    """The innermost spans of a thread, given by its number in `host.thread`."""
    rows = np.flatnonzero(host.thread == thread)
    return InnermostSpans(*split_by_innermost(host.start, host.stop, host.parent, rows))
