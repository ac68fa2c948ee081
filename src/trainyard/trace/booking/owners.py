"""The owner of each instant of a rank's window, as disjoint stretches that tile it; `book` gives only their sums.

The precedence is that of intervals.py. There, lengths come from the measure of unions; here, unions are cut, so that
the sums of the stretches and the ledger's entries are computed independently (tests compare them).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard import words
from trainyard.events import I8, I32, I64
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.booking.idle import idle
from trainyard.trace.booking.intervals import Intervals, cut, first_come, merge


class Owners(NamedTuple):
    """k consecutive stretches [start, stop), cut at the ends of parts. `key`: account and phase as a row of
    `keys.pairs`, -1 for unexplained; `work`: the row of `classified` that owns the stretch, -1 for waits and idle time;
    `late`: the index of the rank that a wait is for, -1 for other stretches."""

    start: I64
    stop: I64
    key: I32
    work: I32
    late: I32


def owners(rank: RankTrace) -> Owners:
    """The owners of a booked rank's window."""
    classified, waits = rank.classified, rank.waits
    columns = [(classified.start, classified.stop, classified.key), (waits.start, waits.stop, waits.key)]
    if len(rank.events.work):
        columns.append(idle(rank.events, rank.context, rank.keys))
    start, stop, key = (np.concatenate(column) for column in zip(*columns))
    bounds = np.array([rank.parts[0].start, *(part.stop for part in rank.parts)], np.int64)
    kinds: I8 = rank.keys.kinds()
    begin, end, row = stretches(Intervals(start, stop, kinds[key], rank.keys.precedence()[key]), bounds)
    n, w = len(classified.start), len(waits.start)
    key = _take(key, row, row >= 0)
    work = _take(np.arange(n, dtype=np.int32), row, (row >= 0) & (row < n))
    late = _take(waits.late, row - n, (row >= n) & (row < n + w))
    # Idle time is in pieces where the host went from one span to the next with the same reason: join them.
    changes = (np.diff(key) != 0) | (np.diff(work) != 0) | (np.diff(late) != 0) | np.isin(begin[1:], bounds)
    first = np.flatnonzero(np.append(True, changes)) if len(begin) else np.empty(0, np.int64)
    return Owners(begin[first], np.append(begin[first[1:]], end[-1:]), key[first], work[first], late[first])


def _take(column: I32, rows: I64, some: np.ndarray) -> I32:
    """`column[rows]` where `some` is true, else -1."""
    output = np.full(len(rows), -1, np.int32)
    output[some] = column[rows[some]]
    return output


def stretches(intervals: Intervals, bounds: I64) -> tuple[I64, I64, I64]:
    """(begin, end, row of the interval that owns it, -1 for none) of stretches that tile [bounds[0], bounds[-1])."""
    opening, closing = bounds[0], bounds[-1]
    start, stop = np.clip(intervals.start, opening, closing), np.clip(intervals.stop, opening, closing)
    order = np.lexsort((intervals.key, start))
    kinds = intervals.kind[order]
    # Starts as an empty interval at the opening.
    taken = np.full((2, 1), opening, np.int64)
    pieces_found: list[tuple[I64, I64, I64]] = []
    for kind in range(len(words.KINDS)):
        rows, begin, end = first_come(order[kinds == kind], start, stop)
        if not len(rows):
            continue
        edges = taken.T.reshape(-1)
        pieces, piece_begin, piece_end = cut(begin, end, edges)
        free = np.searchsorted(edges, piece_begin, "right") % 2 == 0
        pieces_found.append((piece_begin[free], piece_end[free], rows[pieces[free]]))
        taken = merge(taken, np.stack([begin, end]))
    begin, end = np.append(opening, taken[1]), np.append(taken[0], closing)
    bare = end > begin
    pieces_found.append((begin[bare], end[bare], np.full(int(bare.sum()), -1, np.int64)))
    begin, end, row = (np.concatenate(column) for column in zip(*pieces_found))
    in_order = np.argsort(begin, kind="stable")
    pieces, begin, end = cut(begin[in_order], end[in_order], bounds)
    return begin, end, row[in_order][pieces]
