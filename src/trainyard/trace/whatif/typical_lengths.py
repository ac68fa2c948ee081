"""Typical op lengths, on ranks that are not late: the basis of a step without stragglers.

A unit is an interval of work or the host time that leads to one launch; it may consist of several pieces (ops of the
graph), in different accounts. Corresponding units of all ranks have the same label (a name) and ordinal in their step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I64
from trainyard.stats.medians import lower_median
from trainyard.trace.whatif.profile_ops import HOST, TRANSFER, WORK, Ops

LATE_RATIO = 1.1
"""A rank is late if its own work takes more than this many times the median rank's."""


def typical_lengths(
    ops: Ops, length: I64, is_counted: NDArray[np.bool_], is_own_work: NDArray[np.bool_], late: int | None = None
) -> I64:
    """The length (ns) of every op on ranks that are not late; if `late` is given, only the ops of that rank (an index)
    change, to their length on the others.

    All ranks of a job run the same program: the k-th unit with a label in a step corresponds on all ranks. Its length
    is, account by account, the mean over the steps of all ranks that are not late; if none of those has it, over the
    steps of its own rank. `length`: ns of each op; `is_counted`: ops in the steps that count; ops without a counterpart
    there keep their length. `is_own_work`: ops that are a rank's own work and wait for no other rank. If no rank is
    left out, this is the ideal of Lin et al., arXiv:2505.05713.
    """
    # All columns below have an element for each of these ops, unless stated. A "number" identifies a group of them.
    rows = np.flatnonzero(is_counted & np.isin(ops.role, (HOST, WORK, TRANSFER)))
    if not len(rows):
        return length
    role, rank_index, label, account = (column[rows] for column in (ops.role, ops.rank_index, ops.label, ops.account))
    if late is None:
        in_time = _is_in_time(rank_index, ops.step[rows], length[rows] * is_own_work[rows])
    else:
        in_time = np.arange(int(rank_index.max()) + 1) != late
    unit = _number_rows(role, rank_index, ops.unit[rows])
    # `first`: position in `rows` of each unit's first op; `unit_kind`, by unit: the same on all ranks and in all steps.
    first = np.unique(unit, return_index=True)[1]
    unit_kind = _number_rows(role[first], label[first], _ordinals(rows[first], ops))

    # The same unit on all ranks in time is one group; on each late rank it is a separate group.
    of_rank = np.where(in_time[rank_index], -1, rank_index)
    unit_group = _number_rows(unit_kind, of_rank[first])
    times = np.bincount(unit_group)[unit_group][unit]  # how many units the mean is over
    group = _number_rows(unit_kind[unit], account, of_rank)
    mean_ns = np.bincount(group, weights=length[rows] / times)

    # The mean of ranks in time, by kind of unit and account; NaN if none of them has it.
    kind_and_account = _number_rows(unit_kind[unit], account)
    usual_ns = np.full(int(kind_and_account.max()) + 1, np.nan)
    usual_ns[kind_and_account[in_time[rank_index]]] = mean_ns[group[in_time[rank_index]]]
    # Ranks in time that have the unit without such a piece take no time for it.
    has_unit = np.zeros(int(unit_kind.max()) + 1, bool)
    has_unit[unit_kind[unit][in_time[rank_index]]] = True
    without_ns = np.where(has_unit[unit_kind[unit]], 0.0, mean_ns[group])
    wanted_ns = np.where(np.isnan(usual_ns[kind_and_account]), without_ns, usual_ns[kind_and_account])

    # Pieces of a unit in one account are scaled together, so that their sum is the wanted length.
    piece = _number_rows(unit, account)
    measured_ns = np.bincount(piece, weights=length[rows])[piece]
    new_length = length.copy()
    new_length[rows] = np.rint(length[rows] * wanted_ns / np.maximum(measured_ns, 1)).astype(np.int64)
    return new_length if late is None else np.where(ops.rank_index == late, new_length, length)


def _is_in_time(rank_index: I64, step: I64, length: I64) -> NDArray[np.bool_]:
    """Whether each rank's work per step is at most `LATE_RATIO` times that of the median rank (of two, the faster).

    `rank_index`, `step`, `length` (ns): of each op. The result is indexed by rank index.
    """
    total_ns = np.bincount(rank_index, weights=length)
    distinct = np.unique(_number_rows(rank_index, step), return_index=True)[1]
    rank_of_step = rank_index[distinct]  # of each distinct (rank, step)
    steps = np.bincount(rank_of_step, minlength=len(total_ns))
    present = np.flatnonzero(steps)
    ns_per_step = total_ns[present] / steps[present]
    in_time = np.zeros(len(total_ns), bool)
    in_time[present] = ns_per_step <= LATE_RATIO * lower_median(np.sort(ns_per_step))
    return in_time


def _ordinals(first_ops: I64, ops: Ops) -> I64:
    """For each unit, the number of earlier units of the same rank, step, role (work, transfer or host time) and label.
    `first_ops`: index of each unit's first op in the columns of `ops`."""
    columns = (ops.role, ops.rank_index, ops.step, ops.label)
    same = _number_rows(*(column[first_ops] for column in columns))
    # In the order of groups and start, a unit's ordinal is its position less that of the first unit of its group.
    order = np.lexsort((ops.start[first_ops], same))
    counts = np.bincount(same)
    ordinal = np.empty(len(first_ops), np.int64)
    ordinal[order] = np.arange(len(first_ops)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ordinal


def _number_rows(*columns: NDArray) -> I64:
    """Numbers the distinct rows of the columns from 0: the number of each row, equal for equal rows."""
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        lowest = int(column.min())
        numbers = _number_values(numbers * (int(column.max()) - lowest + 1) + column - lowest)
    return numbers


def _number_values(values: NDArray) -> I64:
    """Numbers the distinct values, which are not negative, from 0: the number of each."""
    largest = int(values.max())
    if largest > 8 * len(values):
        return np.unique(values, return_inverse=True)[1]
    is_present = np.zeros(largest + 1, bool)
    is_present[values] = True
    return (np.cumsum(is_present) - 1)[values]
