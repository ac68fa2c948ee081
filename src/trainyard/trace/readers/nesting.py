"""Which host span stands inside which, and who is innermost at each instant of a thread."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I32, I64
from trainyard.trace.readers.kineto.native import library

_TICK = 2_000
"""ns: a stamp of whole microseconds is off by up to one at either end."""
_BLOCK = 1 << 14
_HIGHEST = 256
"""Open spans to look at for a parent: of spans that overlap as they like there may be thousands."""


def nest(start: I64, stop: I64, thread: I32) -> tuple[I32, I64]:
    """Parents of m spans sorted by (start, longest first), -1 at the top, and stops clamped to the parent's.

    Stamps are rounded, so a child may seem to outlive its parent by a tick; it does not. One that outlives it by
    more is no child (annotations of asynchronous work overlap as they like) and keeps its stop.
    """
    found = library()
    if found is None or not len(start):
        return _nest(start, stop, thread)
    start, stops, thread = np.ascontiguousarray(start), stop.copy(), np.ascontiguousarray(thread)
    parents = np.empty(len(start), np.int32)
    columns = (start.ctypes.data, stops.ctypes.data, thread.ctypes.data)
    if not found.nest(len(start), *columns, int(thread.max()), _TICK, parents.ctypes.data):
        raise MemoryError
    return parents, stops


def _nest(start: I64, stop: I64, thread: I32) -> tuple[I32, I64]:
    # Arrays of machine numbers: a list would hold an object for each.
    parents, stops = array("i", [-1]) * len(start), array("q", stop.tobytes())
    open_on: dict[int, list[int]] = {}
    for row, (begin, end, lane) in enumerate(rows_of(start, stop, thread)):
        stack = open_on.get(lane)
        if stack is None:
            stack = open_on[lane] = []
        while stack and stops[stack[-1]] <= begin:
            stack.pop()
        for around in stack[: -_HIGHEST - 1 : -1]:
            if end <= stops[around] + _TICK:
                parents[row] = around
                if end > stops[around]:
                    stops[row] = stops[around]
                break
        stack.append(row)
    return np.array(parents, np.int32), np.array(stops, np.int64)


def rows_of(*columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """The rows of some columns as Python numbers, made a few thousand at a time."""
    for first in range(0, len(columns[0]), _BLOCK):
        yield from zip(*(column[first : first + _BLOCK].tolist() for column in columns))


def nearest(wanted: NDArray[np.bool_], parent: I32) -> I32:
    """For each host row the nearest row strictly above it that is wanted, -1 where none is."""
    # One more row at the end makes row -1 its own parent.
    at, ends = np.append(parent, -1).astype(np.int32), np.append(wanted, True)
    while (on := np.flatnonzero(~ends[at])).size:
        # What a row rests on has gone on itself, so the jumps double.
        at[on] = at[at[on]]
    return at[:-1]


def innermost(start: I64, stop: I64, parent: I32, rows: I64) -> tuple[I64, I32]:
    """Stretches of one thread by its innermost span: stretch i is [edge[i], edge[i + 1]) and owned by row owner[i],
    -1 where no span is open. `rows` are the thread's rows, in the tables' order.
    """
    rows = rows[stop[rows] > start[rows]]
    n = len(rows)
    # At one instant spans close inner first (a later row is inside), then open outer first.
    inner_first = rows[::-1]
    closing = inner_first[np.argsort(stop[inner_first], kind="stable")]
    opened, closed = start[rows], stop[closing]
    edges, owner = np.empty(2 * n, np.int64), np.empty(2 * n, np.int32)
    for time, of, place in (
        (opened, rows, np.arange(n) + np.searchsorted(closed, opened, "right")),
        (closed, parent[closing], np.arange(n) + np.searchsorted(opened, closed, "left")),
    ):
        edges[place], owner[place] = time, of
    return edges, owner
