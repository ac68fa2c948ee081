"""Books every instant of a window to one interval, vectorised over interval endpoints.

Input: intervals, each with a kind (index into `words.KINDS`, the precedence) and a key (the number of an account and
phase), and the parts of the window (such as steps), which tile it. Each instant is owned by the active interval with
the lowest kind; within a kind by the one that started first, then by the lower key. n intervals, p parts, k keys.

Cost: O(n log n). Within a kind, intervals sorted by start own [max(start, latest stop before), stop), which needs only
the running maximum of stops. Time that higher kinds own is subtracted: the length of their union inside an interval is
the difference of two values of its cumulative length (`_UnionLength`).

A union of intervals is an array [2, k]: the begins and ends (ns) of its k stretches, sorted and disjoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trainyard.events import I8, I32, I64

_BLOCK_ROWS = 1 << 16


class Intervals(NamedTuple):
    """n intervals: [start, stop) ns, kind (index into words.KINDS), key (row of a table of accounts x phases)."""

    start: I64
    stop: I64
    kind: I8
    key: I32


class Booking(NamedTuple):
    """`owned`[p, k + 1]: ns that each key owns in each part; the last column is uncovered time. `live`[p, k]: length of
    the union of each key's intervals. `unions`[p, kinds]: the same for each kind. `by_interval`[n]: ns that each
    interval owns in the window."""

    owned: I64
    live: I64
    unions: I64
    by_interval: I64


def book(intervals: Intervals, bounds: I64, key_count: int, kind_count: int) -> Booking:
    """Books the parts [bounds[i], bounds[i + 1]), i < p, in ns. Intervals, in any order, are clipped to the window.

    Each row of `owned` sums to the part's length: the last column holds uncovered time. `key_count` and `kind_count`:
    number of columns of the result.
    """
    parts = len(bounds) - 1
    window = (bounds[0], bounds[-1])
    start = np.clip(intervals.start, *window)
    stop = np.clip(intervals.stop, *window)
    owned = np.zeros((parts, key_count + 1), np.int64)
    union_ns = np.zeros((parts, key_count), np.int64)
    unions = np.zeros((parts, kind_count), np.int64)
    by_interval = np.zeros(len(start), np.int64)

    # Rows of intervals by start, ties by key. Kinds are booked from the highest precedence to the lowest.
    order = np.lexsort((intervals.key, start))
    owned_union = np.empty((2, 0), np.int64)  # time of the kinds booked so far
    for kind in range(kind_count):
        rows, begin, end = own_by_start(order[intervals.kind[order] == kind], start, stop)
        if not len(rows):
            continue
        higher_kinds = _UnionLength(owned_union)
        for block in _row_blocks(len(rows)):
            row, part, piece_begin, piece_end = _cut_into_parts(rows[block], begin[block], end[block], bounds)
            length = piece_end - piece_begin
            np.add.at(unions[:, kind], part, length)
            length -= higher_kinds.length_between(piece_begin, piece_end)
            np.add.at(owned, (part, intervals.key[row]), length)
            np.add.at(by_interval, row, length)
        owned_union = merge_unions(owned_union, np.stack([begin, end]))

    # The union of each key's own intervals, for all keys at once: shifted by key, those of different keys are disjoint.
    by_key = order[np.argsort(intervals.key[order], kind="stable")]
    shift = intervals.key.astype(np.int64) * (window[1] - window[0] + 1)
    rows, begin, end = own_by_start(by_key, start + shift, stop + shift)
    for block in _row_blocks(len(rows)):
        own_shift = shift[rows[block]]
        row, part, piece_begin, piece_end = _cut_into_parts(
            rows[block], begin[block] - own_shift, end[block] - own_shift, bounds
        )
        np.add.at(union_ns, (part, intervals.key[row]), piece_end - piece_begin)

    owned[:, key_count] = np.diff(bounds) - owned.sum(axis=1)
    return Booking(owned=owned, live=union_ns, unions=unions, by_interval=by_interval)


def own_by_start(rows: I64, start: I64, stop: I64) -> tuple[I64, I64, I64]:
    """The disjoint stretches that intervals own if the earlier start has precedence: (row, begin ns, end ns) of each.

    `rows`: rows of `start` and `stop` (ns), sorted by start; an interval inside earlier ones owns nothing.
    """
    begin, end = start[rows], stop[rows]
    latest_end = np.maximum.accumulate(end)
    begin = np.maximum(begin, np.concatenate([begin[:1], latest_end[:-1]]))
    owns = end > begin
    return rows[owns], begin[owns], end[owns]


def cut_at_bounds(begin: I64, end: I64, bounds: I64) -> tuple[I64, I64, I64]:
    """Cuts stretches at the bounds that they straddle: (index of the stretch, begin ns, end ns) of each piece.

    `begin`, `end`: of each stretch, in ns; `bounds`: sorted times in ns. Pieces are in order of stretch, then of time.
    """
    # The bounds strictly inside stretch i are bounds[first[i] : first[i] + inside[i]].
    first = np.searchsorted(bounds, begin, "right")
    inside = np.searchsorted(bounds, end, "left") - first
    if not inside.any():
        return np.arange(len(begin)), begin, end
    pieces = np.repeat(np.arange(len(begin)), inside + 1)
    # Position of each piece within its stretch: its index minus the index of the first piece of the stretch.
    first_piece = np.cumsum(inside + 1) - (inside + 1)
    position = np.arange(len(pieces)) - np.repeat(first_piece, inside + 1)
    inner = first[pieces] + position
    top = len(bounds) - 1
    # A piece lies between two inner bounds, except that the first begins, and the last ends, with its stretch.
    piece_begin = np.where(position == 0, begin[pieces], bounds[np.clip(inner - 1, 0, top)])
    piece_end = np.where(position >= inside[pieces], end[pieces], bounds[np.clip(inner, 0, top)])
    return pieces, piece_begin, piece_end


def _cut_into_parts(rows: I64, begin: I64, end: I64, bounds: I64) -> tuple[I64, I64, I64, I64]:
    """Cuts disjoint stretches at the bounds of parts: (row, part, begin ns, end ns) of each piece.

    `rows`: the interval of each stretch; `begin`, `end`: its times, within the bounds; `bounds`: p + 1 times; `part`:
    an index from 0 to p - 1.
    """
    pieces, begin, end = cut_at_bounds(begin, end, bounds)
    return rows[pieces], np.searchsorted(bounds, begin, "right") - 1, begin, end


def _row_blocks(n: int) -> Iterator[slice]:
    """Slices of n rows, block by block, which bounds the memory of intermediate arrays."""
    return (slice(first, first + _BLOCK_ROWS) for first in range(0, n, _BLOCK_ROWS))


class _UnionLength:
    """The length (ns) of a union, [2, k], between two times. `before[i]`: length of its first i stretches."""

    def __init__(self, union: I64) -> None:
        self.begin, self.end = union
        self.before = np.concatenate([[0], np.cumsum(self.end - self.begin)])

    def length_until(self, time: I64) -> I64:
        """The length (ns) of the union up to each time: its complete stretches, and the begun part of the last one."""
        begun_count = np.searchsorted(self.begin, time, "right")
        last_begin = np.concatenate([[0], self.begin])[begun_count]
        last_end = np.concatenate([[0], self.end])[begun_count]
        inside_last = np.minimum(time, last_end) - last_begin
        return self.before[np.maximum(begun_count - 1, 0)] + np.where(begun_count > 0, inside_last, 0)

    def length_between(self, begin: I64, end: I64) -> I64:
        return self.length_until(end) - self.length_until(begin)


def merge_unions(a: I64, b: I64) -> I64:
    """The union of two unions, not both empty. Arguments and result: [2, k], begins and ends in ns, sorted and
    disjoint."""
    stretches = np.concatenate([a, b], axis=1)
    begin, end = stretches[:, np.argsort(stretches[0], kind="stable")]
    latest_end = np.maximum.accumulate(end)
    # A stretch of the result begins if all earlier stretches have ended, and ends before the next one begins.
    begins_stretch = np.concatenate([[True], begin[1:] > latest_end[:-1]])
    ends = np.concatenate([latest_end[:-1][begins_stretch[1:]], latest_end[-1:]])
    return np.stack([begin[begins_stretch], ends])
