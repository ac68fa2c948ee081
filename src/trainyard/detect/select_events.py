"""Selection of intervals by account, and their time, count and names.

`Booked` is the profile of one rank, with columns that have one row per interval of work: its times, `owned` (ns booked
to it), `name` (index into `events.names`, -1 for none) and `key` (index into `pairs`, its account and phase).
`rows_by_rank[i]` are rows in these columns of `ranks[i]`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from re import Pattern

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.finding_text import mean_per_step, shorten
from trainyard.events import I64
from trainyard.ledger import Account


def select_work(booked: Booked, kind: str, *subdivisions: str) -> I64:
    """Rows of the intervals in full steps whose account is of `kind` and of one of `subdivisions` (none given: any)."""
    if not len(booked.key):
        return np.empty(0, np.int64)
    is_selected_key = booked.keys(
        lambda account, _: account.kind == kind and (not subdivisions or account.what in subdivisions)
    )
    return np.flatnonzero(is_selected_key[booked.key] & booked.full(booked.start))


def select_idle(booked: Booked, is_selected: Callable[[Account], bool]) -> I64:
    """Rows in `booked.idle`, of the idle intervals in full steps whose account satisfies `is_selected`."""
    is_selected_key = np.append(booked.keys(lambda account, _: is_selected(account)), False)
    return np.flatnonzero(is_selected_key[booked.idle.key] & booked.full(booked.idle.start))


def select_by_name(booked: Booked, rows: I64, pattern: Pattern[str]) -> I64:
    """The intervals among `rows` whose name matches the pattern."""
    return rows[booked.names(pattern.search)[booked.name[rows]]]


def owned_ns_per_step(ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> int:
    """ns a step that these intervals own, averaged over ranks."""
    return mean_per_step(ranks, (int(rank.owned[rows].sum()) for rank, rows in zip(ranks, rows_by_rank)))


def starts_per_step(ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> int:
    """Number of intervals that begin per step, the mean over ranks, rounded up. Intervals that resume interrupted work
    do not count."""
    total = sum(int(rank.begins[rows].sum()) for rank, rows in zip(ranks, rows_by_rank))
    return -(-total // max(1, sum(rank.steps for rank in ranks)))


def dominant_account(ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> Account:
    """The account with most of the intervals' time. Needs at least one interval. Each interval counts a ns more than it
    owns, so that intervals under others, which own nothing, have an account too."""
    totals: Counter[str] = Counter()
    for rank, rows in zip(ranks, rows_by_rank):
        ns_by_key = np.bincount(rank.key[rows], weights=rank.owned[rows] + 1, minlength=len(rank.pairs))
        for (account, _), ns in zip(rank.pairs, ns_by_key.tolist()):
            totals[str(account)] += int(ns)
    return Account.parse(totals.most_common(1)[0][0])


def describe_names(ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> str:
    """`mostly NAME` if one name has more than half of the intervals' time, else `the largest part NAME (12 %)`."""
    totals: Counter[str] = Counter()
    for rank, rows in zip(ranks, rows_by_rank):
        named = rows[rank.name[rows] >= 0]
        ns_by_name = np.bincount(rank.name[named], weights=rank.owned[named] + 1)
        for name_index in np.flatnonzero(ns_by_name).tolist():
            totals[rank.events.names[name_index]] += int(ns_by_name[name_index])
    if not totals:
        return "without names"
    (name, ns), total_ns = totals.most_common(1)[0], totals.total()
    if 2 * ns > total_ns:
        return f"mostly {shorten(name)}"
    return f"the largest part {shorten(name)} ({units.show_share(ns, total_ns, 0)})"
