"""Builds the operation tree of a measured trace: the mean step, with the ns that the ledger books to each operation.

A host row is an index into the columns of `HostSpans`; a local node is a node of one rank's `SpanPaths`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.events import I64, OP, Events
from trainyard.operation_tree import OP as OP_NODE
from trainyard.operation_tree import PHASE, STEP, OperationNode, OperationTree
from trainyard.trace.align.steps import Mask, select_averaged
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.operations.owned_time import OWN, find_owned_time
from trainyard.trace.operations.span_paths import SpanPaths, find_span_paths

_PHASES = list(words.PHASES)
_MAX_NODES = 20_000
"""Nodes of a tree; the time of further ones is added to their ancestors, least time first."""
_MAX_SHAPES = 32
"""Operand shapes of a node that are kept."""


def build_operation_tree(measured: MeasuredTrace) -> OperationTree | None:
    """The operation tree of the parts that `measured.mean` averages; None if no rank has host ops.

    The `own_ns` of the nodes sum to `measured.mean.wall_ns`.
    """
    masks = select_averaged([rank.parts for rank in measured.ranks])
    builder = _TreeBuilder()
    part_count = 0
    has_ops = False
    for index in measured.comparable_indices:
        if masks[index].any():
            rank = measured.ranks[index]
            has_ops |= bool((rank.events.host.what == OP).any())
            part_count += int(masks[index].sum())
            _add_rank(builder, rank, masks[index])
    return builder.build(part_count, measured.mean.wall_ns) if has_ops else None


class _TreeBuilder:
    """Collects nodes by path, with totals over all parts and ranks."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int, str], int] = {}  # (row of the parent, kind, label) -> row
        self._parents: list[int] = [-1]
        self.ns: list[int] = [0]
        self.calls: list[int] = [0]
        self.shapes: list[set[str]] = [set()]

    def child(self, parent: int, kind: int, label: str) -> int:
        """The row of a child of the row `parent`, which is added if it is new; `parent` itself if the tree is full.
        `kind`: that of the node, as in `OperationNode`."""
        row = self._rows.get((parent, kind, label))
        if row is None:
            if len(self._parents) >= _MAX_NODES:
                return parent
            row = self._rows[parent, kind, label] = len(self._parents)
            self._parents.append(parent)
            self.ns.append(0)
            self.calls.append(0)
            self.shapes.append(set())
        return row

    def build(self, part_count: int, wall_ns: int) -> OperationTree:
        """The mean over `part_count` parts; rounding by largest remainder makes `own_ns` sum to `wall_ns`."""
        totals = np.array(self.ns, np.int64)
        own_ns, remainder = totals // part_count, totals % part_count
        own_ns[np.argsort(-remainder, kind="stable")[: wall_ns - int(own_ns.sum())]] += 1
        keys = [(0, STEP, "step"), *self._rows]
        return OperationTree(
            tuple(
                OperationNode(label, kind, parent, int(ns), calls / part_count, frozenset(shapes))
                for (_, kind, label), parent, ns, calls, shapes in zip(
                    keys, self._parents, own_ns, self.calls, self.shapes, strict=True
                )
            )
        )


class _LocalNodes(NamedTuple):
    """Puts the local nodes of one rank into the tree. `rows`: (phase, local node) -> row in `builder`."""

    builder: _TreeBuilder
    paths: SpanPaths
    rows: dict[tuple[int, int], int]

    def row(self, phase: int, node: int) -> int:
        """The row of a local node (-1: none) in a phase, which is an index into words.PHASES."""
        row = self.rows.get((phase, node))
        if row is None:
            if node < 0:
                row = self.builder.child(0, PHASE, _PHASES[phase])
            else:
                paths = self.paths
                above = self.row(phase, int(paths.parent[node]))
                row = self.builder.child(above, int(paths.kind[node]), paths.labels[paths.label[node]])
            self.rows[phase, node] = row
        return row


def _add_rank(builder: _TreeBuilder, rank: RankTrace, is_counted: Mask) -> None:
    """Adds the counted parts of one rank to `builder`. `is_counted`: mask over `rank.parts`."""
    paths = find_span_paths(rank.events, rank.context)
    local = _LocalNodes(builder, paths, {})
    owned = find_owned_time(rank, is_counted)
    node = np.where(owned.host >= 0, paths.node[owned.host] if len(paths.node) else -1, -1)
    columns = (owned.phase, node + 1, owned.leaf_kind + 1, np.maximum(owned.leaf, 0))
    keys, (ns, calls) = _sum_by_key(columns, (owned.ns, owned.calls))
    for index in np.argsort(-ns, kind="stable").tolist():
        phase, node_plus_1, kind_plus_1, leaf = (int(column[index]) for column in keys)
        row = local.row(phase, node_plus_1 - 1)
        if kind_plus_1 - 1 != OWN:
            row = builder.child(row, kind_plus_1 - 1, owned.leaves[leaf])
        builder.ns[row] += int(ns[index])
        builder.calls[row] += int(calls[index])
    rows = np.flatnonzero(paths.opens & _in_counted_steps(rank, is_counted))
    keys, (calls,) = _sum_by_key((rank.context.phase[rows], paths.node[rows]), (np.ones(len(rows), np.int64),))
    for phase, node, count in zip(*(column.tolist() for column in keys), calls.tolist()):
        builder.calls[local.row(phase, node)] += count
    _add_shapes(local, rank, rows)


def _sum_by_key(columns: tuple[NDArray[np.integer], ...], values: tuple[I64, ...]) -> tuple[list[I64], list[I64]]:
    """Adds up `values` over rows with equal `columns` (not negative): (columns of the distinct keys, their sums)."""
    packed = np.zeros(len(columns[0]), np.int64)
    sizes = [int(column.max(initial=0)) + 1 for column in columns]
    for column, size in zip(columns, sizes):
        packed = packed * size + column
    distinct, number = np.unique(packed, return_inverse=True)
    sums = []
    for value in values:
        total = np.zeros(len(distinct), np.int64)
        np.add.at(total, number, value)
        sums.append(total)
    keys: list[I64] = []
    for size in reversed(sizes):
        keys.insert(0, distinct % size)
        distinct = distinct // size
    return keys, sums


def _in_counted_steps(rank: RankTrace, is_counted: Mask) -> Mask:
    """Whether each host row starts in a step, as marked on the host, that is counted; all rows if none is marked."""
    events = rank.events
    counted = {part.label for part, counts in zip(rank.parts, is_counted) if counts}
    marks = [mark for mark in events.marks if mark.label in counted]
    if not marks:
        return np.ones(len(events.host), bool)
    starts, stops = (np.array([getattr(mark, edge) for mark in marks], np.int64) for edge in ("start", "stop"))
    index = np.searchsorted(starts, events.host.start, "right") - 1
    return (index >= 0) & (events.host.start < stops[index])


def _add_shapes(local: _LocalNodes, rank: RankTrace, rows: NDArray[np.integer]) -> None:
    """Adds the operand shapes of the ops among host rows `rows` to their nodes."""
    events: Events = rank.events
    rows = rows[(events.host.shape[rows] >= 0) & (local.paths.kind[local.paths.node[rows]] == OP_NODE)]
    keys, _ = _sum_by_key((rank.context.phase[rows], local.paths.node[rows], events.host.shape[rows]), ())
    for phase, node, shape in zip(*(column.tolist() for column in keys)):
        shapes = local.builder.shapes[local.row(phase, node)]
        if len(shapes) < _MAX_SHAPES:
            shapes.add(str(tuple(dims for dims in events.shapes[shape].dims if dims))[:120])
