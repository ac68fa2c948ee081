"""Long runs of kernels (on a CPU: ops) so small that launching them takes longer than running them.

Rows are positions in the interval columns of `Booked`: kernels, copies and collectives of a device, or on a CPU the
training thread's intervals, among them pauses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.booked import Booked, Mask
from trainyard.events import I32, I64

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

TINY_NS = 10_000
"""Framework and driver need 5 to 10 µs of host time to launch a kernel: shorter ones cannot hide their own launch."""
MIN_STORM_KERNELS = 500
"""Tiny kernels in a row that count as a storm: a few hundred between larger kernels are normal and cost little."""
_MAX_PAUSE_NS = 200_000
"""A longer pause has another cause, and ends a run."""
_MAX_PREEMPTION_NS = 100_000_000
"""Longest time for which the operating system may have preempted the host's thread, which does not end a run."""
_NEIGHBOURS, _SHORT_NEIGHBOURS = 6, 5
"""A row counts as preempted if, of the first number of rows of its kind before it, and of as many after it, the second
number are short: rows next to it may be slow for the same reason."""
_NEIGHBOUR_ROWS = 60
"""Largest distance in rows of these neighbours."""
_MIN_SYNC_FRACTION = 0.25
"""Fraction of `.item()` calls among a run's ops from which it reads values one by one: each call comes with at most
three other ops (select, unbind, add)."""


class Storm(NamedTuple):
    """A run, [start, stop) in ns, of `count` tiny kernels or ops; `syncs`: whether the host reads values one by one in
    it."""

    start: int
    stop: int
    count: int
    syncs: bool


def find_storms(booked: Booked) -> list[Storm]:
    """Runs of tiny kernels without a larger one between them; on a CPU, of the training thread's tiny ops. Short pauses
    and concurrent communication do not end a run."""
    is_work_key = booked.keys(lambda account, _: account.kind in ("compute", "copy"))
    is_pause_key = booked.keys(lambda account, _: account.kind in ("launch_gap", "unexplained"))
    is_collective = np.zeros(len(booked.start), bool)
    is_collective[list(booked.collectives)] = True  # the keys are rows
    if not len(booked.start):
        return []
    rows = np.flatnonzero((is_work_key | is_pause_key)[booked.key] & ~is_collective)
    if len(rows) < MIN_STORM_KERNELS:
        return []
    is_work = is_work_key[booked.key[rows]]
    length_ns = booked.stop[rows] - booked.start[rows]
    latest_stop = np.maximum.accumulate(booked.stop[rows])
    after_pause = np.concatenate([[False], booked.start[rows][1:] - latest_stop[:-1] > _MAX_PAUSE_NS])
    breaks = np.where(is_work, length_ns >= TINY_NS, length_ns > _MAX_PAUSE_NS)
    if not booked.on_device:
        breaks &= ~_is_preempted(breaks, length_ns, is_work, booked.name[rows])
    # Number of the run of each element of `rows`. A row that breaks a run also separates it from the next one.
    storm_of_row = np.cumsum(after_pause | breaks | np.concatenate([[False], breaks[:-1]]))
    counted = is_work & ~breaks
    kernels_by_storm = np.bincount(storm_of_row, weights=counted & booked.begins[rows])
    syncs_by_storm = np.bincount(storm_of_row, weights=counted & booked.begins[rows] & _is_sync(booked, rows))
    storms: list[Storm] = []
    for storm_number in np.flatnonzero(kernels_by_storm >= MIN_STORM_KERNELS).tolist():
        first, last = np.searchsorted(storm_of_row, [storm_number, storm_number + 1])  # positions in `rows`
        kernel_rows = rows[first:last][counted[first:last]]
        storms.append(
            Storm(
                start=int(booked.start[kernel_rows[0]]),
                stop=int(booked.stop[kernel_rows].max()),
                count=int(kernels_by_storm[storm_number]),
                syncs=bool(syncs_by_storm[storm_number] >= _MIN_SYNC_FRACTION * kernels_by_storm[storm_number]),
            )
        )
    return storms


def is_in_storms(storms: list[Storm], time_ns: I64) -> Mask:
    """Mask of the times (ns) that lie in one of `storms`, which are disjoint and sorted."""
    if not storms:
        return np.zeros(len(time_ns), bool)
    index = np.searchsorted([storm.start for storm in storms], time_ns, "right") - 1
    return (index >= 0) & (time_ns < np.array([storm.stop for storm in storms])[np.maximum(index, 0)])


def _is_preempted(is_long: Mask, length_ns: I64, is_work: Mask, name: I32) -> Mask:
    """Mask of the rows that are long only because the thread was preempted: rows of the same kind (the same op, or the
    pause after it) around them are short. All arguments are columns of the same rows in order of time: `is_long`: too
    long for a run; `is_work`: work, not a pause; `name`: name number. Applies if one thread does all the work."""
    index = np.arange(len(is_long))
    latest_work = np.maximum.accumulate(np.where(is_work, index, 0))
    # Even for an op, odd for the pause after it.
    kind = np.where(is_work, 2 * name[latest_work], 2 * name[latest_work] + 1)
    order = np.lexsort((index, kind))  # rows by kind, then by time: neighbours of one kind are adjacent
    is_among_short = np.ones(len(is_long), bool)
    for direction in (-1, 1):
        short_neighbours = np.zeros(len(is_long), np.int64)
        for shift in range(1, _NEIGHBOURS + 1):
            neighbour = np.roll(order, direction * shift)
            is_neighbour = (kind[neighbour] == kind[order]) & (np.abs(neighbour - order) <= _NEIGHBOUR_ROWS)
            short_neighbours[order] += is_neighbour & ~is_long[neighbour]
        is_among_short &= short_neighbours >= _SHORT_NEIGHBOURS
    return is_long & is_among_short & (length_ns <= _MAX_PREEMPTION_NS)


def _is_sync(booked: Booked, rows: I64) -> Mask:
    """Mask over `rows`: whether the host span that launched the interval is a synchronising call."""
    launcher = booked.launcher[rows]
    cause = booked.cause[launcher] if len(booked.cause) else np.full(len(rows), -1)
    is_sync_cause = np.array([text == "launch_gap/sync" for text in booked.causes] + [False], bool)
    return (launcher >= 0) & is_sync_cause[cause]
