"""How long each op takes on a rank that is not late: what a step without stragglers is made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I64
from trainyard.stats.medians import lower_median
from trainyard.trace.whatif.profile_ops import HOST, TRANSFER, WORK, Ops

LATE = 1.1
"""A rank is late when its own work takes this many times the middle rank's."""


def typical(ops: Ops, length: I64, counted: NDArray[np.bool_], own: NDArray[np.bool_]) -> I64:
    """Every op's length as on the ranks that are not late.

    Ranks of one job run one program: the k-th unit with a label in a step is the same on every rank. It takes, account
    by account, its mean over the steps of all ranks that are not late; where none of those has it, over its own rank's.
    `counted`: ops in the steps that count; one without its like there keeps its time. `own`: ops that are a rank's own
    work, and wait for no other rank. With no rank left out, this is the ideal of Lin et al., arXiv:2505.05713.
    """
    rows = np.flatnonzero(counted & np.isin(ops.role, (HOST, WORK, TRANSFER)))
    if not len(rows):
        return length
    role, place, label, account = (column[rows] for column in (ops.role, ops.place, ops.label, ops.account))
    in_time = _in_time(place, ops.step[rows], length[rows] * own[rows])
    unit = _numbers(role, place, ops.unit[rows])
    first = np.unique(unit, return_index=True)[1]
    like = _numbers(role[first], label[first], _ordinals(rows[first], ops))

    # The same thing on ranks that are in time is one group; each other rank's is a group of its own.
    of_rank = np.where(in_time[place], -1, place)
    thing = _numbers(like, of_rank[first])
    times = np.bincount(thing)[thing][unit]
    group = _numbers(like[unit], account, of_rank)
    mean = np.bincount(group, weights=length[rows] / times)

    known = _numbers(like[unit], account)
    usual = np.full(int(known.max()) + 1, np.nan)
    usual[known[in_time[place]]] = mean[group[in_time[place]]]
    wanted = np.where(np.isnan(usual[known]), mean[group], usual[known])

    piece = _numbers(unit, account)
    took = np.bincount(piece, weights=length[rows])[piece]
    changed = length.copy()
    changed[rows] = np.rint(length[rows] * wanted / np.maximum(took, 1)).astype(np.int64)
    return changed


def _in_time(place: I64, step: I64, length: I64) -> NDArray[np.bool_]:
    """Of each rank, whether its work a step is at most `LATE` times that of the middle one (of two, the faster)."""
    total = np.bincount(place, weights=length)
    visits = np.unique(np.stack([place, step]), axis=1)[0]
    steps = np.bincount(visits, minlength=len(total))
    there = np.flatnonzero(steps)
    each = total[there] / steps[there]
    in_time = np.zeros(len(total), bool)
    in_time[there] = each <= LATE * lower_median(np.sort(each))
    return in_time


def _ordinals(at: I64, ops: Ops) -> I64:
    """Of each unit (the first op of it): how many of its rank, step, role and label began before it."""
    same = _numbers(ops.role[at], ops.place[at], ops.step[at], ops.label[at])
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
