"""Long runs of kernels (on a CPU: ops) so small that launching them takes longer than running them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.booked import Booked, Mask
from trainyard.events import I32, I64

TINY_NS = 10_000
"""Framework and driver need 5 to 10 µs of host time to launch a kernel: shorter ones cannot hide their own launch."""
RUN = 500
"""Tiny kernels in a row that count as a storm: a few hundred between larger kernels are normal and cost little."""
_BRIDGE_NS = 200_000
"""A longer pause has another cause, and ends a run."""
_SLICE_NS = 10_000_000
"""Longest time for which the operating system may have preempted the host's thread, which does not end a run."""
_LIKE, _NEAR = 3, 60
"""A row counts as preempted if this many of its kind before and after it, within this many rows, are short."""
_SYNC_SHARE = 0.25
"""Fraction of `.item()` calls among a run's ops from which it reads values one by one: each call comes with at most
three other ops (select, unbind, add)."""


class Storm(NamedTuple):
    """A run, [start, stop), of `count` tiny kernels or ops; `syncs`: whether the host reads values one by one in it."""

    start: int
    stop: int
    count: int
    syncs: bool


def storms(booked: Booked) -> list[Storm]:
    """Runs of tiny kernels without a larger one between them; on a CPU, of the training thread's tiny ops. Short pauses
    and concurrent communication do not end a run."""
    work = booked.keys(lambda account, _: account.kind in ("compute", "copy"))
    pause = booked.keys(lambda account, _: account.kind in ("launch_gap", "unexplained"))
    is_collective = np.zeros(len(booked.start), bool)
    is_collective[list(booked.collectives)] = True
    rows = np.flatnonzero((work | pause)[booked.key] & ~is_collective) if len(booked.start) else np.empty(0, np.int64)
    if len(rows) < RUN:
        return []
    is_work = work[booked.key[rows]]
    length = booked.stop[rows] - booked.start[rows]
    latest = np.maximum.accumulate(booked.stop[rows])
    paused = np.concatenate([[False], booked.start[rows][1:] - latest[:-1] > _BRIDGE_NS])
    breaks = np.where(is_work, length >= TINY_NS, length > _BRIDGE_NS)
    if not booked.on_device:
        breaks &= ~_preempted(breaks, length, is_work, booked.name[rows])
    # A row that breaks a run also separates it from the next one.
    number = np.cumsum(paused | breaks | np.concatenate([[False], breaks[:-1]]))
    member = is_work & ~breaks
    counts = np.bincount(number, weights=member & booked.begins[rows])
    reads = np.bincount(number, weights=member & booked.begins[rows] & _syncs(booked, rows))
    runs: list[Storm] = []
    for run in np.flatnonzero(counts >= RUN).tolist():
        first, last = np.searchsorted(number, [run, run + 1])
        own = rows[first:last][member[first:last]]
        runs.append(
            Storm(
                start=int(booked.start[own[0]]),
                stop=int(booked.stop[own].max()),
                count=int(counts[run]),
                syncs=bool(reads[run] >= _SYNC_SHARE * counts[run]),
            )
        )
    return runs


def within(runs: list[Storm], time: I64) -> Mask:
    """Whether each time lies in one of `runs`, which are disjoint and sorted."""
    if not runs:
        return np.zeros(len(time), bool)
    index = np.searchsorted([storm.start for storm in runs], time, "right") - 1
    return (index >= 0) & (time < np.array([storm.stop for storm in runs])[np.maximum(index, 0)])


def _preempted(long: Mask, length: I64, is_work: Mask, name: I32) -> Mask:
    """Rows that are long only because the thread was preempted: rows of the same kind (the same op, or the pause after
    it) around them are short. Applies if one thread does all the work."""
    index = np.arange(len(long))
    before = np.maximum.accumulate(np.where(is_work, index, 0))
    like = np.where(is_work, 2 * name[before], 2 * name[before] + 1)
    order = np.lexsort((index, like))
    usual = np.ones(len(long), bool)
    for shift in (*range(-_LIKE, 0), *range(1, _LIKE + 1)):
        other = np.roll(order, shift)
        near = (like[other] == like[order]) & (np.abs(other - order) <= _NEAR)
        usual[order] &= near & ~long[other]
    return long & usual & (length <= _SLICE_NS)


def _syncs(booked: Booked, rows: I64) -> Mask:
    launcher = booked.launcher[rows]
    cause = booked.cause[launcher] if len(booked.cause) else np.full(len(rows), -1)
    wanted = np.array([text == "launch_gap/sync" for text in booked.causes] + [False], bool)
    return (launcher >= 0) & wanted[cause]
