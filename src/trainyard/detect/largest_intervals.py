"""The largest intervals of a finding's cost, and whether almost all of it is a single one.

A finding names them as evidence, and `confidence.doubt_of_recurrence` uses them: a cost in one interval or in few steps
may be a disturbance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard import units, words
from trainyard.booked import Booked
from trainyard.detect.code_shares import MAIN_SHARE, code_shares, idle_time
from trainyard.detect.finding_text import shorten
from trainyard.detect.host_blame import main_culprit
from trainyard.events import I64
from trainyard.finding import CodeShare

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

SINGLE_FRACTION = 0.9
"""Fraction of a cost from which one interval is named in the sentence of the finding."""
_NAMED = 3


class LargestIntervals(NamedTuple):
    """The largest intervals over all ranks, as (name, ns), the largest first. `is_single`: on each rank that has any
    cost, its largest interval is almost all of it; `ranks`: the number of these ranks; `steps_with`: steps of all ranks
    that have a relevant part of the cost; `steps`: all their full steps; `code`: the functions in which the host spent
    the cost, if the files show them."""

    intervals: tuple[tuple[str, int], ...]
    is_single: bool
    ranks: int
    steps_with: int
    steps: int
    code: tuple[CodeShare, ...] = ()

    @property
    def headline(self) -> str:
        """`; almost all of the booked time is one cudaFree of 6.0 s`, whatever the price; empty if no interval
        dominates."""
        if not self.is_single:
            return ""
        name, ns = self.intervals[0]
        on = " on each rank" if self.ranks > 1 else ""
        return f"; almost all of the booked time is one {name} of {units.show_time(ns)}{on}"

    @property
    def evidence(self) -> str:
        """`largest: cudaFree 6.0 s, cudaMalloc 1.2 ms`: the largest interval of each name among them."""
        largest: dict[str, int] = {}
        for name, ns in self.intervals:
            largest.setdefault(name, ns)
        return "largest: " + ", ".join(f"{name} {units.show_time(ns)}" for name, ns in largest.items())


def largest_idle(ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> LargestIntervals | None:
    """The largest idle intervals. `rows_by_rank`: rows in `idle` of each rank, sorted; adjacent ones with the same key
    form an interval, named after the code that covers the largest part of it."""
    ranked: list[tuple[int, Booked, I64]] = []  # (ns of an interval, its rank, its rows in `idle`)
    columns: list[tuple[I64, I64]] = []  # of each rank: start and ns of all its intervals
    for rank, rows in zip(ranks, rows_by_rank):
        idle = rank.idle
        opens = np.ones(len(rows), bool)
        opens[1:] = (idle.start[rows[1:]] > idle.stop[rows[:-1]]) | (idle.key[rows[1:]] != idle.key[rows[:-1]])
        first = np.flatnonzero(opens)  # positions in `rows` at which an interval begins; `stop`: at which it ends
        ns = np.add.reduceat(idle.ns[rows], first) if len(rows) else np.empty(0, np.int64)
        stop = np.append(first[1:], len(rows))
        largest = np.argsort(-ns, kind="stable")[:_NAMED].tolist()
        ranked.extend((int(ns[index]), rank, rows[first[index] : stop[index]]) for index in largest)
        columns.append((idle.start[rows[first]], ns))
    ranked.sort(key=lambda item: -item[0])
    named = [
        (_add_code(main_culprit(rank, rank.idle.host[rows], rank.idle.ns[rows]), rank, rows), ns)
        for ns, rank, rows in ranked[:_NAMED]
    ]
    summary = _summarise(ranks, columns, tuple(named))
    times = [idle_time(rank, rows) for rank, rows in zip(ranks, rows_by_rank)]
    total_ns = sum(int(rank.idle.ns[rows].sum()) for rank, rows in zip(ranks, rows_by_rank))
    return summary and summary._replace(code=code_shares(ranks, times, total_ns))


def _add_code(name: str, booked: Booked, rows: I64) -> str:
    """The name of an idle interval (`rows` of `idle`) with the function in which the host spent most of it, unless the
    name contains that already: `Python at train.py:31 (augment)`."""
    shares = code_shares([booked], [idle_time(booked, rows)])
    if not shares or shares[0].share < MAIN_SHARE or shares[0].location.function in name:
        return name
    return f"{name} at {shares[0].location}"


def largest_work(ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> LargestIntervals | None:
    """The largest device intervals (on a CPU, those of the training thread), by owned time. `rows_by_rank`: rows in the
    interval columns of each rank."""
    ranked: list[tuple[int, str]] = []  # (ns, name)
    columns: list[tuple[I64, I64]] = []  # of each rank: start and ns of all its intervals
    for rank, rows in zip(ranks, rows_by_rank):
        ns = rank.owned[rows]
        for row in rows[np.argsort(-ns, kind="stable")[:_NAMED]].tolist():
            name = rank.events.names[rank.name[row]] if rank.name[row] >= 0 else "interval"
            ranked.append((int(rank.owned[row]), shorten(name)))
        columns.append((rank.start[rows], ns))
    ranked.sort(key=lambda item: -item[0])
    return _summarise(ranks, columns, tuple((name, ns) for ns, name in ranked[:_NAMED]))


def largest_waits(ranks: Sequence[Booked]) -> LargestIntervals | None:
    """The largest waits for late ranks in collectives, in full steps; None if no rank waits."""
    ranked: list[tuple[int, str]] = []  # (ns, name)
    columns: list[tuple[I64, I64]] = []  # of each rank: start and ns of all its waits
    for rank in ranks:
        waits = rank.waits
        is_straggler = rank.keys(lambda account, _: account.kind == "straggler")
        rows = np.flatnonzero(np.append(is_straggler, False)[waits.key] & rank.full(waits.start))
        for row in rows[np.argsort(-waits.ns[rows], kind="stable")[:_NAMED]].tolist():
            account = rank.pairs[waits.key[row]][0]
            ranked.append((int(waits.ns[row]), f"wait in {words.COLLECTIVES[account.what].label}"))
        columns.append((waits.start[rows], waits.ns[rows]))
    ranked.sort(key=lambda item: -item[0])
    return _summarise(ranks, columns, tuple((name, ns) for ns, name in ranked[:_NAMED]))


def _summarise(
    ranks: Sequence[Booked], columns: Sequence[tuple[I64, I64]], named: tuple[tuple[str, int], ...]
) -> LargestIntervals | None:
    """Summarises the intervals of all ranks; None if there are none. `columns`: of each rank, start and ns of all its
    intervals; `named`: (name, ns) of the largest ones. A step has a relevant part of the cost if it has more than a
    tenth of the largest part that a step of its rank has."""
    with_cost = [(rank, start, ns) for rank, (start, ns) in zip(ranks, columns) if ns.sum() > 0]
    if not named or not with_cost:
        return None
    steps_with = 0
    for rank, start, ns in with_cost:
        step = rank.step_of(start)
        # ns in each full step, by index into `parts`.
        by_step = np.bincount(step[step >= 0], weights=ns[step >= 0], minlength=len(rank.parts))
        steps_with += int((by_step > 0.1 * by_step.max(initial=0)).sum())
    return LargestIntervals(
        intervals=named,
        is_single=all(ns.max() >= SINGLE_FRACTION * ns.sum() for _, _, ns in with_cost),
        ranks=len(with_cost),
        steps_with=steps_with,
        steps=sum(rank.steps for rank, _, _ in with_cost),
    )
