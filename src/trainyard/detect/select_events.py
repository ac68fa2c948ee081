"""Selection of intervals by account, and their time, count and names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from re import Pattern

import numpy as np

from trainyard.booked import Booked
from trainyard.detect.finding_text import mean_per_step, shorten
from trainyard.events import I64
from trainyard.ledger import Account


def work(booked: Booked, kind: str, *whats: str) -> I64:
    """Intervals in full steps whose account is of `kind` and, if any are given, one of `whats`."""
    wanted = booked.keys(lambda account, _: account.kind == kind and (not whats or account.what in whats))
    return np.flatnonzero(wanted[booked.key] & booked.full(booked.start)) if len(booked.key) else np.empty(0, np.int64)


def named(booked: Booked, rows: I64, pattern: Pattern[str]) -> I64:
    """The intervals among `rows` whose name matches the pattern."""
    return rows[booked.names(pattern.search)[booked.name[rows]]]


def owned(events: Sequence[Booked], rows: Sequence[I64]) -> int:
    """ns a step that these intervals own, averaged over ranks."""
    return mean_per_step(events, (int(rank.owned[own].sum()) for rank, own in zip(events, rows)))


def count(events: Sequence[Booked], rows: Sequence[I64]) -> int:
    """Number of intervals that begin in a step, rounded up."""
    total = sum(int(rank.begins[own].sum()) for rank, own in zip(events, rows))
    return -(-total // max(1, sum(rank.steps for rank in events)))


def account_of(events: Sequence[Booked], rows: Sequence[I64]) -> Account:
    """The account with most of the intervals' time. Needs at least one interval."""
    totals: Counter[str] = Counter()
    for rank, own in zip(events, rows):
        sums = np.bincount(rank.key[own], weights=rank.owned[own] + 1, minlength=len(rank.pairs))
        for (account, _), ns in zip(rank.pairs, sums.tolist()):
            totals[str(account)] += int(ns)
    return Account.parse(totals.most_common(1)[0][0])


def commonest(events: Sequence[Booked], rows: Sequence[I64]) -> str:
    """The shortened name with most of the intervals' time."""
    totals: Counter[str] = Counter()
    for rank, own in zip(events, rows):
        sums = np.bincount(rank.name[own][rank.name[own] >= 0], weights=rank.owned[own][rank.name[own] >= 0] + 1)
        for number in np.flatnonzero(sums).tolist():
            totals[rank.events.names[number]] += int(sums[number])
    return shorten(totals.most_common(1)[0][0]) if totals else "unnamed"
