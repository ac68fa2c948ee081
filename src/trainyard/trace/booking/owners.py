"""The owner of each instant of a rank's window, as disjoint stretches that tile it; `book` gives only their sums.

Callers are exports that show single stretches, such as the table `verdicts` and timelines. The precedence is that of
intervals.py. There, lengths come from the measure of unions; here, unions are cut, so that the sums of the stretches
and the ledger's entries are computed independently (tests compare them).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard import words
from trainyard.events import I8, I32, I64
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.booking.idle import find_idle
from trainyard.trace.booking.intervals import Intervals, cut_at_bounds, merge_unions, own_by_start


class Owners(NamedTuple):
    """k consecutive stretches [start, stop), cut at the ends of parts. `key`: account and phase as a row of
    `keys.pairs`, -1 for unexplained; `work`: the row of `classified` that owns the stretch, -1 for waits and idle time;
    `late`: the index of the rank that a wait is for, -1 for other stretches."""

    start: I64
    stop: I64
    key: I32
    work: I32
    late: I32


def find_owners(rank: RankTrace) -> Owners:
    """Finds the owner of each instant of a booked rank's window: work, a wait for another rank, idle time, or nothing.

    Neighbouring stretches with the same owner, account and phase are joined, except at the bounds of parts.
    """
    classified, waits = rank.classified, rank.waits
    columns = [(classified.start, classified.stop, classified.key), (waits.start, waits.stop, waits.key)]
    if len(rank.events.work):
        columns.append(find_idle(rank.events, rank.context, rank.keys))
    start, stop, key = (np.concatenate(column) for column in zip(*columns))
    bounds = np.array([rank.parts[0].start, *(part.stop for part in rank.parts)], np.int64)
    kinds: I8 = rank.keys.kinds()
    # `row`: an index into the concatenated columns: first the n rows of work, then the w waits, then idle time.
    begin, end, row = tile_window(
        Intervals(start=start, stop=stop, kind=kinds[key], key=rank.keys.precedence()[key]), bounds
    )
    n, w = len(classified.start), len(waits.start)
    key = _take_or_minus_one(key, row, row >= 0)
    work = _take_or_minus_one(np.arange(n, dtype=np.int32), row, (row >= 0) & (row < n))
    late = _take_or_minus_one(waits.late, row - n, (row >= n) & (row < n + w))
    # Idle time is in pieces where the host went from one span to the next with the same reason: join them.
    changes = (np.diff(key) != 0) | (np.diff(work) != 0) | (np.diff(late) != 0) | np.isin(begin[1:], bounds)
    first = np.flatnonzero(np.append(True, changes)) if len(begin) else np.empty(0, np.int64)
    return Owners(
        start=begin[first],
        stop=np.append(begin[first[1:]], end[-1:]),
        key=key[first],
        work=work[first],
        late=late[first],
    )


def _take_or_minus_one(column: I32, rows: I64, is_valid: np.ndarray) -> I32:
    """`column[rows]` where `is_valid` is true, else -1."""
    output = np.full(len(rows), -1, np.int32)
    output[is_valid] = column[rows[is_valid]]
    return output


def tile_window(intervals: Intervals, bounds: I64) -> tuple[I64, I64, I64]:
    """Tiles the window with stretches: (begin ns, end ns, row of the interval that owns it, -1 for none) of each.

    `intervals`: in any order, clipped to the window; `bounds`: sorted times (ns) at which stretches are cut; the first
    and the last are those of the window. Each instant belongs to the lowest kind, then the earlier start, then the
    lower key. The stretches are in order of time.
    """
    opening, closing = bounds[0], bounds[-1]
    start, stop = np.clip(intervals.start, opening, closing), np.clip(intervals.stop, opening, closing)
    order = np.lexsort((intervals.key, start))
    kinds = intervals.kind[order]
    # The time that higher kinds own, as [2, k] begins and ends; at first an empty interval at the opening.
    owned_union = np.full((2, 1), opening, np.int64)
    tiles: list[tuple[I64, I64, I64]] = []
    for kind in range(len(words.KINDS)):
        rows, begin, end = own_by_start(order[kinds == kind], start, stop)
        if not len(rows):
            continue
        edges = owned_union.T.reshape(-1)
        pieces, piece_begin, piece_end = cut_at_bounds(begin, end, edges)
        # `edges` alternates begins and ends of owned time: an even number of them before a piece means that it is free.
        free = np.searchsorted(edges, piece_begin, "right") % 2 == 0
        tiles.append((piece_begin[free], piece_end[free], rows[pieces[free]]))
        owned_union = merge_unions(owned_union, np.stack([begin, end]))
    # The rest of the window, between the stretches of the union, has no owner.
    begin, end = np.append(opening, owned_union[1]), np.append(owned_union[0], closing)
    is_unowned = end > begin
    tiles.append((begin[is_unowned], end[is_unowned], np.full(int(is_unowned.sum()), -1, np.int64)))
    begin, end, row = (np.concatenate(column) for column in zip(*tiles))
    by_begin = np.argsort(begin, kind="stable")
    pieces, begin, end = cut_at_bounds(begin[by_begin], end[by_begin], bounds)
    return begin, end, row[by_begin][pieces]
