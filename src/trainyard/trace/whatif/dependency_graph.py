"""Dependency graph of ops, and its replay: n ops, each with a start, a length and the ops it needs.

An op starts when the last of its needs has stopped, plus a lag:

    start[v] = max over needs u of (stop[u] + weight[u, v]) + lag[v]        (from the base, if v has no need)
    stop[v]  = start[v] + length[v]

The needs of an op are the ops that it waits for; an edge leads from a need to the op that waits, and a negative weight
lets the op start before its need has stopped. `fit_graph` takes the lags from the measurement: slack that no need
explains is kept. A replay without changes therefore reproduces every measured start and stop, to the nanosecond. All
times are integer ns; n ops, m needs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadInput
from trainyard.events import I64
from trainyard.trace.readers.kineto.native import library

_NO_NEED = np.iinfo(np.int64).min
"""A time before all others, for ops without needs."""


class Needs(NamedTuple):
    """m edges: op `op` starts no sooner than `weight` ns after op `need` has stopped."""

    need: I64
    op: I64
    weight: I64


class Graph(NamedTuple):
    """n ops as measured. `order`: op numbers in topological order. `needs` are sorted by their op's position in it;
    those of the op at position i are rows `first[i]` to `first[i + 1]`. `base`: the time from which the lag of ops
    without needs counts."""

    start: I64
    length: I64
    lag: I64
    order: I64
    first: I64
    needs: Needs
    base: int


def join_needs(needs: list[Needs]) -> Needs:
    """Concatenates sets of edges."""
    if not needs:
        return Needs(*(np.empty(0, np.int64) for _ in range(3)))
    return Needs(*(np.concatenate(column).astype(np.int64) for column in zip(*needs)))


def fit_graph(start: I64, stop: I64, needs: Needs, tie_break: NDArray[np.integer]) -> Graph:
    """The graph that replays to the measured times.

    `start`, `stop`: measured times of each op in ns; `needs`: edges with the least weight that they should have.

    An op that started before its need had stopped keeps that lead: its edge's weight is lowered to the measured value.
    An edge from an op that started later contradicts the measurement and is left out, so that there are no cycles. Of
    ops that start at the same time, the one with the lower `tie_break` goes first, then the one with the lower number.
    """
    order = np.lexsort((np.arange(len(start)), tie_break, start))
    position = _positions(order)
    in_order = position[needs.need] < position[needs.op]
    need, op, weight = (column[in_order] for column in needs)
    needs = Needs(need, op, np.minimum(weight, start[op] - stop[need]))
    base = int(start.min()) if len(start) else 0
    # When the needs of each op allow it to start; the lag is the rest of the time until it did.
    ready_ns = np.full(len(start), _NO_NEED)
    np.maximum.at(ready_ns, op, stop[need] + needs.weight)
    ready_ns[ready_ns == _NO_NEED] = base
    return _sort_needs(
        Graph(start=start, length=stop - start, lag=start - ready_ns, order=order, first=order, needs=needs, base=base),
        needs,
    )


def plan_graph(length: I64, needs: Needs) -> Graph:
    """The graph of ops without measured times, or with unaligned clocks: every op starts as soon as its needs allow.

    Raises `BadInput` if ops wait for each other in a cycle.
    """
    # A topological order: an op is appended when the last of its needs has been.
    dependents: list[list[int]] = [[] for _ in range(len(length))]
    for need, op in zip(needs.need.tolist(), needs.op.tolist()):
        dependents[need].append(op)
    open_needs = np.bincount(needs.op, minlength=len(length)).tolist()
    order = [op for op, count in enumerate(open_needs) if not count]
    for op in order:  # grows while it is walked
        for dependent in dependents[op]:
            open_needs[dependent] -= 1
            if not open_needs[dependent]:
                order.append(dependent)
    if len(order) < len(length):
        raise BadInput(f"{len(length) - len(order)} of {len(length)} ops wait for each other in a cycle.")
    topological_order = np.array(order, np.int64)
    zeros = np.zeros(len(length), np.int64)
    graph = _sort_needs(
        Graph(
            start=zeros, length=length, lag=zeros, order=topological_order, first=topological_order, needs=needs, base=0
        ),
        needs,
    )
    return graph._replace(start=replay_graph(graph)[0])


def replace_needs(graph: Graph, dropped: NDArray[np.bool_], added: Needs) -> Graph:
    """The graph without the edges `dropped` (a mask over `needs`), and with edges `added` to ops that started later.
    Lags are kept."""
    kept_needs = Needs(*(column[~dropped] for column in graph.needs))
    return _sort_needs(graph, join_needs([kept_needs, added]))


def _sort_needs(graph: Graph, needs: Needs) -> Graph:
    """Replaces the needs of a graph, sorted by their op's position in `graph.order`, and `first` accordingly."""
    position = _positions(graph.order)
    by_op = np.argsort(position[needs.op], kind="stable")
    needs = Needs(*(column[by_op] for column in needs))
    return graph._replace(needs=needs, first=np.searchsorted(position[needs.op], np.arange(len(graph.start) + 1)))


def _positions(order: I64) -> I64:
    """The position of each op in `order`."""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return position


def replay_graph(graph: Graph, length: I64 | None = None, lag: I64 | None = None) -> tuple[I64, I64]:
    """Replays the graph: (start, stop) of every op in ns, with these lengths and lags (by default those of the graph).

    O(n + m), by compiled code if it was built.
    """
    lengths, lags = graph.length if length is None else length, graph.lag if lag is None else lag
    native = library()
    if native is None:
        return _replay_in_python(graph, lengths, lags)
    columns = [
        np.ascontiguousarray(column, np.int64)
        for column in (graph.order, graph.first, graph.needs.need, graph.needs.weight, lengths, lags)
    ]
    start, stop = np.empty((2, len(lengths)), np.int64)
    native.replay(len(lengths), graph.base, *(column.ctypes.data for column in (*columns, start, stop)))
    return start, stop


def _replay_in_python(graph: Graph, length: I64, lag: I64) -> tuple[I64, I64]:
    """As `replay_graph`, for installations without compiled code: ops in topological order, each after its needs.

    `length`, `lag`: of each op, in ns. Returns (start, stop) of each op.
    """
    lengths, lags = length.tolist(), lag.tolist()
    need, _, weight = (column.tolist() for column in graph.needs)
    first = graph.first.tolist()
    starts, stops = [0] * len(lengths), [0] * len(lengths)
    for position, op in enumerate(graph.order.tolist()):
        low, high = first[position], first[position + 1]
        ready_ns = stops[need[low]] + weight[low] if low < high else graph.base
        for row in range(low + 1, high):
            stop_ns = stops[need[row]] + weight[row]
            if stop_ns > ready_ns:
                ready_ns = stop_ns
        starts[op] = start_ns = ready_ns + lags[op]
        stops[op] = start_ns + lengths[op]
    return np.array(starts, np.int64), np.array(stops, np.int64)
