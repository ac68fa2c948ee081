"""Long runs of work so small that starting it costs more than doing it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.booked import Booked, Mask
from trainyard.events import I32, I64

TINY_NS = 10_000
"""Framework and driver take the host 5 to 10 µs to start a kernel: shorter ones cannot hide their own launch."""
RUN = 500
"""In a row: a few hundred are the ordinary glue between larger work, and what they cost is little."""
_BRIDGE_NS = 200_000
"""A pause longer than this is something else going on, and ends a run."""
_SLICE_NS = 10_000_000
"""Unless the operating system took the host's thread off its core: for so long at most,"""
_LIKE, _NEAR = 3, 60
"""and so many of its like before it and after it, within so many rows, went on as usual."""
_SYNC_SHARE = 0.25
"""Of a run's ops: what it takes beside `.item()` (select, unbind, add) is at most three ops a call."""


class Storm(NamedTuple):
    """One run, [start, stop), of `count` tiny works; `syncs`: whether the host reads values one by one in it."""

    start: int
    stop: int
    count: int
    syncs: bool


def storms(booked: Booked) -> list[Storm]:
    """On a device runs of tiny kernels with no larger one between; on a CPU of tiny ops of the training thread. A run
    goes on over short pauses, and over communication, which runs beside it."""
    work = booked.keys(lambda account, _: account.kind in ("compute", "copy"))
    pause = booked.keys(lambda account, _: account.kind in ("launch_gap", "unexplained"))
    beside = np.zeros(len(booked.start), bool)
    beside[list(booked.collectives)] = True
    rows = np.flatnonzero((work | pause)[booked.key] & ~beside) if len(booked.start) else np.empty(0, np.int64)
    if len(rows) < RUN:
        return []
    is_work = work[booked.key[rows]]
    length = booked.stop[rows] - booked.start[rows]
    latest = np.maximum.accumulate(booked.stop[rows])
    paused = np.concatenate([[False], booked.start[rows][1:] - latest[:-1] > _BRIDGE_NS])
    breaks = np.where(is_work, length >= TINY_NS, length > _BRIDGE_NS)
    if not booked.on_device:
        breaks &= ~_accidents(breaks, length, is_work, booked.name[rows])
    # Both ends of what breaks a run begin a new one.
    number = np.cumsum(paused | breaks | np.concatenate([[False], breaks[:-1]]))
    member = is_work & ~breaks
    counts = np.bincount(number, weights=member & booked.begins[rows])
    reads = np.bincount(number, weights=member & booked.begins[rows] & _syncs(booked, rows))
    found: list[Storm] = []
    for run in np.flatnonzero(counts >= RUN).tolist():
        first, last = np.searchsorted(number, [run, run + 1])
        own = rows[first:last][member[first:last]]
        found.append(
            Storm(
                start=int(booked.start[own[0]]),
                stop=int(booked.stop[own].max()),
                count=int(counts[run]),
                syncs=bool(reads[run] >= _SYNC_SHARE * counts[run]),
            )
        )
    return found


def within(found: list[Storm], time: I64) -> Mask:
    """Whether each time lies in one of the runs, which are disjoint and in order."""
    if not found:
        return np.zeros(len(time), bool)
    place = np.searchsorted([storm.start for storm in found], time, "right") - 1
    return (place >= 0) & (time < np.array([storm.stop for storm in found])[np.maximum(place, 0)])


def _accidents(long: Mask, length: I64, is_work: Mask, name: I32) -> Mask:
    """Rows that are long by no fault of theirs: their like (the same op, or the pauses after it) stand around them and
    are not. Where one thread does everything, the operating system makes some of any row long."""
    place = np.arange(len(long))
    before = np.maximum.accumulate(np.where(is_work, place, 0))
    like = np.where(is_work, 2 * name[before], 2 * name[before] + 1)
    order = np.lexsort((place, like))
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
