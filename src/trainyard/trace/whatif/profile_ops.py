"""A profile as ops with dependencies: device work, host work, and the meetings of ranks in collectives.

The ops of a rank with a device are its kernels and copies, and the host's work between launches. Those of a rank that
trains on a CPU are the stretches of the training thread and the collectives that other threads run. A collective that
is matched on other ranks, and a receive whose send is known, consists of two ops: its arrival (of zero length) and its
transfer, which starts when the last member has arrived.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.events import I32, I64, Events
from trainyard.ledger import Account
from trainyard.trace.whatif.dependency_graph import Graph, Needs, fit_graph, join_needs

HOST, WORK, ARRIVAL, MEETING, TRANSFER = range(5)
"""Values of `Ops.role`, in the order of ops that start at the same time."""
NOWHERE = -1
"""`Ops.step` before the first mark, and of ranks without marks."""


class Ops(NamedTuple):
    """n ops. `rank_index`: -1 for a meeting; `account`, `label`: indices into the profile's tables, -1 none; `row`: the
    interval (see `Classified`) of a work, arrival or transfer op, -1 for others; `unit`: ops of the same role, rank and
    unit are pieces of one interval or launch; `step`: index of the mark that the op belongs to."""

    start: I64
    stop: I64
    role: I64
    rank_index: I64
    account: I64
    label: I64
    row: I64
    unit: I64
    step: I64


class Profile(NamedTuple):
    """The input of `replay_graph`, and the data that turns its result back into events. For rank i: `host[i]`: the
    numbers of its host ops in order of time; `begin[i]`, `end[i]`: the ops at the start and stop of each interval, by
    row (-1: a host stretch); `launcher[i]`: the host row that launched each interval or is the interval (-1: none)."""

    ops: Ops
    graph: Graph
    accounts: tuple[Account, ...]
    labels: tuple[str, ...]
    host: tuple[I64, ...]
    begin: tuple[I64, ...]
    end: tuple[I64, ...]
    launcher: tuple[I32, ...]


class ValueTable:
    """Numbers for values, in order of first use."""

    def __init__(self) -> None:
        self.values: dict[object, int] = {}

    def number(self, value: object) -> int:
        return self.values.setdefault(value, len(self.values))


class Draft:
    """Collects ops and needs, and builds a `Profile`."""

    def __init__(self) -> None:
        """Starts without ops and with empty tables of accounts and labels."""
        self._columns: list[tuple[I64, ...]] = []
        self._needs: list[Needs] = []
        self._count = 0
        self.accounts = ValueTable()
        self.labels = ValueTable()

    def add(
        self,
        role: int,
        rank_index: int,
        start: I64,
        stop: I64,
        account: I64 | int = -1,
        label: I64 | int = -1,
        row: I64 | int = -1,
        unit: I64 | int = -1,
        step: I64 | int = NOWHERE,
    ) -> I64:
        """Adds ops and returns their numbers."""
        n = len(start)
        columns = (start, stop, role, rank_index, account, label, row, unit, step)
        self._columns.append(tuple(np.broadcast_to(column, n) for column in columns))
        self._count += n
        return np.arange(self._count - n, self._count)

    def need(self, need: I64, op: I64, weight: int = 0) -> None:
        """Adds needs: op `op[i]` starts no sooner than `weight` ns after `need[i]` has stopped."""
        self._needs.append(Needs(need, op, np.full(len(op), weight, np.int64)))

    def account_of(self, accounts: list[Account]) -> I64:
        """The number of each account in the profile's table."""
        return np.array([self.accounts.number(account) for account in accounts] or [0], np.int64)

    def labels_of(self, events: Events) -> I64:
        """The label number of each of the events' names; the last entry, for -1, is that of the empty text."""
        return np.array([self.labels.number(name) for name in (*events.names, "")], np.int64)

    def profile(self, host: list[I64], begin: list[I64], end: list[I64], launcher: list[I32]) -> Profile:
        """Builds the profile of all ops and needs that were added; the arguments as in `Profile`."""
        ops = Ops(*(np.concatenate(column).astype(np.int64) for column in zip(*self._columns)))
        return Profile(
            ops=ops,
            graph=fit_graph(ops.start, ops.stop, join_needs(self._needs), ops.role),
            accounts=tuple(account for account in self.accounts.values if isinstance(account, Account)),
            labels=tuple(str(label) for label in self.labels.values),
            host=tuple(host),
            begin=tuple(begin),
            end=tuple(end),
            launcher=tuple(launcher),
        )


class HostTimeline(NamedTuple):
    """A rank's host over time: stretch i is [edges[i], edges[i + 1]), with its account, label and unit."""

    edges: I64
    account: I64
    label: I64
    unit: I64


class Pauses(NamedTuple):
    """Sorted disjoint stretches [begin, end) in which the host only waited, and what for: the pause that ends at
    `until[j]` waited for op `awaited[j]`."""

    begin: I64
    end: I64
    until: I64
    awaited: I64


class HostOps(NamedTuple):
    """A rank's host ops in order of time."""

    op: I64
    start: I64
    stop: I64

    def before(self, time: I64) -> I64:
        """The last op that had stopped at each time, -1 for none."""
        index = np.searchsorted(self.stop, time, "right") - 1
        return np.where(index >= 0, self.op[np.maximum(index, 0)], -1)


def add_host(draft: Draft, rank_index: int, line: HostTimeline, cuts: I64, pauses: Pauses, marks: I64) -> HostOps:
    """Adds the host's stretches as successive ops, cut at `cuts`, without the pauses. `marks`: starts of steps."""
    in_range = (cuts > line.edges[0]) & (cuts < line.edges[-1])
    points = np.unique(np.concatenate([line.edges, cuts[in_range], pauses.begin, pauses.end]))
    begin, end = points[:-1], points[1:]
    if len(pauses.begin):
        pause = np.maximum(np.searchsorted(pauses.begin, begin, "right") - 1, 0)
        is_awake = (begin < pauses.begin[pause]) | (begin >= pauses.end[pause])
        begin, end = begin[is_awake], end[is_awake]
    stretch = np.searchsorted(line.edges, begin, "right") - 1
    step = np.searchsorted(marks, begin, "right") - 1
    op = draft.add(
        HOST, rank_index, begin, end, line.account[stretch], line.label[stretch], -1, line.unit[stretch], step
    )
    draft.need(op[:-1], op[1:])
    after = np.searchsorted(begin, pauses.until)
    has_op = after < len(op)
    draft.need(pauses.awaited[has_op], op[after[has_op]])
    return HostOps(op, begin, end)


def mark_of(events: Events) -> I64:
    """Starts of the rank's steps."""
    return np.array([mark.start for mark in events.marks], np.int64)
