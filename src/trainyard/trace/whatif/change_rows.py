"""Applies a `RowChange`: shortens single intervals of work, and removes idle stretches.

A finding states such a change for each rank (`ChangedRows`): `rows`, intervals of `Classified`, of whose lengths the
fractions `remaining` remain; and idle stretches [idle_start, idle_stop) ns, sorted, with `ended_by`, the interval that
ends each of them (-1 for none). Ops are the nodes of the dependency graph (`Ops` in `profile_ops.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard.change import ChangedRows, RowChange
from trainyard.events import I64
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.whatif.profile_ops import HOST, TRANSFER, WORK, Profile


def change_rows(
    change: RowChange,
    profile: Profile,
    ranks: Sequence[RankTrace],
    length: I64,
    lag: I64,
    in_step: NDArray[np.bool_],
) -> tuple[I64, I64]:
    """(length, lag) of all ops, in ns, with the change applied to the ops `in_step` (a mask over ops).

    `length`, `lag`: those before the change, which stay unmodified: the duration of each op, and the delay of its start
    after its dependencies. Ops that took time keep at least 1 ns.
    """
    index_of_rank = {rank.events.rank: rank_index for rank_index, rank in enumerate(ranks)}
    new_length, new_lag = length.copy(), lag.copy()
    for rows in change.ranks:
        rank_index = index_of_rank[rows.rank]
        in_rank = (profile.ops.rank_index == rank_index) & in_step
        if len(rows.rows):
            on_device = len(ranks[rank_index].events.work) > 0
            _scale_intervals(rows, profile, in_rank, len(profile.begin[rank_index]), on_device, new_length)
        if len(rows.idle_start):
            _remove_idle_time(rows, profile, profile.begin[rank_index], in_rank, new_length, new_lag)
    return np.where(length > 0, np.maximum(new_length, 1), new_length), new_lag


def _scale_intervals(
    rows: ChangedRows, profile: Profile, in_rank: NDArray[np.bool_], interval_count: int, on_device: bool, length: I64
) -> None:
    """Multiplies the lengths of the ops of changed intervals by the fraction that remains, in place.

    `in_rank`: mask of the rank's ops; `interval_count`: number of its intervals; `on_device`: whether it has device
    work; `length`: ns of all ops, which is modified.
    """
    ops, remaining = profile.ops, np.ones(interval_count)
    remaining[rows.rows] = rows.remaining
    # (mask of ops, column with the interval of each op)
    selected = [(in_rank & np.isin(ops.role, (WORK, TRANSFER)), ops.row)]
    if not on_device:  # the training thread's intervals are host ops, by unit
        selected.append((in_rank & (ops.role == HOST), ops.unit))
    for is_selected, interval in selected:
        op = np.flatnonzero(is_selected)
        length[op] = np.floor(length[op] * remaining[interval[op]]).astype(np.int64)


def _remove_idle_time(
    rows: ChangedRows, profile: Profile, begin: I64, in_rank: NDArray[np.bool_], length: I64, lag: I64
) -> None:
    """Removes the idle stretches of a rank from `length` and `lag` (ns of all ops), in place.

    Host ops are shortened by the part of them that lies in the stretches, and the lag of work that ends a stretch by
    the length of that. `in_rank`: mask of the rank's ops; `begin`: the op at the start of each interval, -1 for none.
    """
    ops = profile.ops
    host = np.flatnonzero(in_rank & (ops.role == HOST))
    removed = _time_inside(rows, ops.stop[host]) - _time_inside(rows, ops.start[host])
    length[host] = np.maximum(length[host] - removed, 0)
    ended = rows.ended_by >= 0
    if not ended.any():
        return
    idle_ns = np.bincount(
        rows.ended_by[ended], weights=(rows.idle_stop - rows.idle_start)[ended], minlength=len(begin)
    ).astype(np.int64)
    delayed = np.flatnonzero((idle_ns > 0) & (begin >= 0))  # intervals
    delayed = delayed[in_rank[begin[delayed]]]
    op = begin[delayed]
    lag[op] = np.where(lag[op] > 0, np.maximum(lag[op] - idle_ns[delayed], 0), lag[op])


def _time_inside(rows: ChangedRows, time: I64) -> I64:
    """ns of the removed stretches that lie before each time (ns)."""
    # Length of the first i stretches; the part of the last begun stretch after the time is subtracted.
    before = np.concatenate([[0], np.cumsum(rows.idle_stop - rows.idle_start)])
    index = np.searchsorted(rows.idle_start, time, "right")
    last = np.maximum(index - 1, 0)
    return before[index] - np.where(index > 0, np.maximum(rows.idle_stop[last] - time, 0), 0)
