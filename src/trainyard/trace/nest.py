"""Which host span stands inside which, and who is innermost at each instant of a thread."""

from __future__ import annotations

import numpy as np

from trainyard.events import I32, I64

_TICK = 2_000
"""ns: a stamp of whole microseconds is off by up to one at either end."""


def nest(start: I64, stop: I64, thread: I32) -> tuple[I32, I64]:
    """Parents of m spans sorted by (start, longest first), -1 at the top, and stops clamped to the parent's.

    Stamps are rounded, so a child may seem to outlive its parent by a tick; it does not. One that outlives it by
    more is no child (annotations of asynchronous work overlap as they like) and keeps its stop.
    """
    parents = np.full(len(start), -1, np.int32)
    stops = stop.tolist()
    open_on: dict[int, list[int]] = {}
    for row, (begin, lane) in enumerate(zip(start.tolist(), thread.tolist())):
        stack = open_on.setdefault(lane, [])
        while stack and stops[stack[-1]] <= begin:
            stack.pop()
        around = next((span for span in reversed(stack) if stops[row] <= stops[span] + _TICK), -1)
        if around >= 0:
            parents[row] = around
            stops[row] = min(stops[row], stops[around])
        stack.append(row)
    return parents, np.array(stops, np.int64)


def innermost(start: I64, stop: I64, parent: I32, rows: I64) -> tuple[I64, I32]:
    """Stretches of one thread by its innermost span: stretch i is [edge[i], edge[i + 1]) and owned by row owner[i],
    -1 where no span is open. `rows` are the thread's rows, in the tables' order.
    """
    rows = rows[stop[rows] > start[rows]]
    n = len(rows)
    edges = np.concatenate([start[rows], stop[rows]])
    opens = np.concatenate([np.ones(n, np.int8), np.zeros(n, np.int8)])
    place = np.arange(n)
    # At one instant spans close inner first (a later row is inside), then open outer first.
    order = np.lexsort((np.concatenate([place, -place]), opens, edges))
    owner = np.concatenate([rows, parent[rows]]).astype(np.int32)
    return edges[order], owner[order]
