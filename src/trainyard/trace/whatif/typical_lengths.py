"""Typical op lengths, on ranks that are not late: the basis of a step without stragglers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I64
from trainyard.stats.medians import lower_median
from trainyard.trace.whatif.profile_ops import HOST, TRANSFER, WORK, Ops

LATE = 1.1
"""A rank is late if its own work takes more than this many times the median rank's."""


def typical(ops: Ops, length: I64, counted: NDArray[np.bool_], own: NDArray[np.bool_]) -> I64:
    """The length of every op on ranks that are not late.

    All ranks of a job run the same program: the k-th unit with a label in a step corresponds on all ranks. Its length
    is, account by account, the mean over the steps of all ranks that are not late; if none of those has it, over the
    steps of its own rank. `counted`: ops in the steps that count; ops without a counterpart there keep their length.
    `own`: ops that are a rank's own work and wait for no other rank. If no rank is left out, this is the ideal of Lin
    et al., arXiv:2505.05713.
    """
    rows = np.flatnonzero(counted & np.isin(ops.role, (HOST, WORK, TRANSFER)))
    if not len(rows):
        return length
    role, rank_index, label, account = (column[rows] for column in (ops.role, ops.rank_index, ops.label, ops.account))
    in_time = _in_time(rank_index, ops.step[rows], length[rows] * own[rows])
    unit = _numbers(role, rank_index, ops.unit[rows])
    first = np.unique(unit, return_index=True)[1]
    like = _numbers(role[first], label[first], _ordinals(rows[first], ops))

    # The same unit on all ranks in time is one group; on each late rank it is a separate group.
    of_rank = np.where(in_time[rank_index], -1, rank_index)
    thing = _numbers(like, of_rank[first])
    times = np.bincount(thing)[thing][unit]
    group = _numbers(like[unit], account, of_rank)
    mean = np.bincount(group, weights=length[rows] / times)

    known = _numbers(like[unit], account)
    usual = np.full(int(known.max()) + 1, np.nan)
    usual[known[in_time[rank_index]]] = mean[group[in_time[rank_index]]]
    wanted = np.where(np.isnan(usual[known]), mean[group], usual[known])

    piece = _numbers(unit, account)
    took = np.bincount(piece, weights=length[rows])[piece]
    changed = length.copy()
    changed[rows] = np.rint(length[rows] * wanted / np.maximum(took, 1)).astype(np.int64)
    return changed


def _in_time(rank_index: I64, step: I64, length: I64) -> NDArray[np.bool_]:
    """Whether each rank's work per step is at most `LATE` times that of the median rank (of two, the faster)."""
    total = np.bincount(rank_index, weights=length)
    visits = np.unique(np.stack([rank_index, step]), axis=1)[0]
    steps = np.bincount(visits, minlength=len(total))
    there = np.flatnonzero(steps)
    each = total[there] / steps[there]
    in_time = np.zeros(len(total), bool)
    in_time[there] = each <= LATE * lower_median(np.sort(each))
    return in_time


def _ordinals(at: I64, ops: Ops) -> I64:
    """The number of units of the same rank, step, role and label that began before each unit. `at`: its first op."""
    same = _numbers(ops.role[at], ops.rank_index[at], ops.step[at], ops.label[at])
    order = np.lexsort((ops.start[at], same))
    counts = np.bincount(same)
    ordinal = np.empty(len(at), np.int64)
    ordinal[order] = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ordinal


def _numbers(*columns: NDArray) -> I64:
    """A number for each distinct row of the columns, from 0."""
    order = np.lexsort(columns)
    new = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.concatenate([[0], np.cumsum(new)])
    return numbers
