"""Regularity of idle time: whether it is at the same places of each step, and in calls of their usual length.

Idle time that the program causes recurs: before the same occurrence of the same kernel in every step. A disturbance of
the host (another process, a lock, paging) hits other places in each step.
"""

from __future__ import annotations

import numpy as np

from trainyard.booked import Booked
from trainyard.events import CALL, I64, NOTE, OP

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

_ATYPICAL = 5
"""Length of a call over the median length of its name, from which it is atypical."""
MIN_STEPS = 3
"""Steps from which places can be compared."""


def regular_fraction(booked: Booked, rows: I64) -> float | None:
    """The fraction (0 to 1) of the idle time in `rows` (of `booked.idle`) that recurs at the same position of each full
    step: the sum over positions of the median over steps. The position of idle time is that of the work that ends it.
    None if the rank has fewer than `MIN_STEPS` full steps, no device or no idle time in `rows`."""
    idle = booked.idle
    rows = rows[idle.next[rows] >= 0]  # `next`: the interval of work that ends the idle time, -1 for none
    total_ns = int(idle.ns[rows].sum())
    steps = sorted(set(booked.step_of(booked.start).tolist()) - {-1})
    if len(steps) < MIN_STEPS or not booked.on_device or not total_ns:
        return None
    position = _positions(booked)[idle.next[rows]]
    step = np.searchsorted(steps, booked.step_of(idle.start[rows]))
    inside = (booked.step_of(idle.start[rows]) >= 0) & (position >= 0)
    _, index = np.unique(position[inside], return_inverse=True)
    by_position = np.zeros((index.max(initial=-1) + 1, len(steps)))  # idle ns by position and step
    np.add.at(by_position, (index, step[inside]), idle.ns[rows[inside]])
    return float(np.median(by_position, axis=1).sum() * len(steps) / total_ns)


def _positions(booked: Booked) -> I64:
    """A number for the position of each interval of work in its step, equal for equal positions: it encodes the name of
    the interval and the number of intervals of that name before it in the step. -1 outside full steps."""
    step = booked.step_of(booked.start)
    order = np.lexsort((booked.start, booked.name, step))  # rows by step, then name, then start
    name, at_step = booked.name[order].astype(np.int64), step[order]
    opens = np.ones(len(order), bool)
    opens[1:] = (name[1:] != name[:-1]) | (at_step[1:] != at_step[:-1])
    index = np.arange(len(order))
    occurrence = index - np.maximum.accumulate(np.where(opens, index, 0))
    positions = np.empty(len(order), np.int64)
    positions[order] = np.where(at_step >= 0, name * (len(order) + 1) + occurrence, -1)
    return positions


def atypical_fraction(booked: Booked, rows: I64) -> float:
    """The fraction of the idle time in `rows` (of `booked.idle`) during ops and calls that take at least `_ATYPICAL`
    times the median length of their name: a slow program is slow in most of its calls, a disturbance in a few."""
    idle, host = booked.idle, booked.events.host
    total_ns = int(idle.ns[rows].sum())
    in_call = rows[(idle.host[rows] >= 0)]
    in_call = in_call[(host.what[idle.host[in_call]] == OP) | (host.what[idle.host[in_call]] == CALL)]
    if not total_ns or not len(in_call):
        return 0.0
    length_ns = host.stop - host.start
    names = np.unique(host.name[idle.host[in_call]])
    is_relevant = np.isin(host.name, names) & (host.what != NOTE)
    median_ns = np.zeros(len(booked.events.names))  # by name number
    # Host rows by name, then length: the median of a name is the middle of its part.
    by_name = np.flatnonzero(is_relevant)[np.lexsort((length_ns[is_relevant], host.name[is_relevant]))]
    _, first, counts = np.unique(host.name[by_name], return_index=True, return_counts=True)
    median_ns[names] = length_ns[by_name[first + counts // 2]]
    span = idle.host[in_call]  # host rows of the ops and calls
    is_atypical = length_ns[span] >= _ATYPICAL * np.maximum(1, median_ns[host.name[span]])
    return float(idle.ns[in_call[is_atypical]].sum() / total_ns)
