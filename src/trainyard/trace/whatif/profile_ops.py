"""A profile as ops that wait for each other: what the device did, what the host did meanwhile, where ranks meet.

Of a rank whose work a device does, the ops are its kernels and copies, and the stretches of what the host did between
launches. Of a rank that trains on its CPU they are the stretches of the training thread and the collectives that
other threads run. A collective met by other ranks, and a receive whose send is known, is two ops: its arrival (no
length) and its transfer, which starts when the last member has come.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.events import I32, I64, Events
from trainyard.ledger import Account
from trainyard.trace.whatif.dependency_graph import Graph, Needs, fit, join

HOST, WORK, ARRIVAL, MEETING, TRANSFER = range(5)
"""Values of `Ops.role`, in the order that ops of one instant go."""
NOWHERE = -1
"""`Ops.step` before the first mark, and where there is none."""


class Ops(NamedTuple):
    """n ops. `place`: of the rank, -1 for a meeting; `account`, `label`: places in the profile's tables, -1 none;
    `row`: of the interval (see `Classified`) that a work, arrival or transfer is, -1 for others; `unit`: ops of one
    role, rank and unit are pieces of one thing; `step`: number of the mark it belongs to."""

    start: I64
    stop: I64
    role: I64
    place: I64
    account: I64
    label: I64
    row: I64
    unit: I64
    step: I64


class Profile(NamedTuple):
    """What `replay` needs, and what turns its answer back into events. `host[i]`: the numbers of rank i's host ops in
    order of time; `begin[i]`, `end[i]`: the ops whose start and stop are those of rank i's interval, by row (-1: a
    host stretch); `launcher[i]`: the host row that launched each interval, or that it is (-1: none)."""

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
    """Ops and needs as they are found."""

    def __init__(self) -> None:
        self._columns: list[tuple[I64, ...]] = []
        self._needs: list[Needs] = []
        self._count = 0
        self.accounts = ValueTable()
        self.labels = ValueTable()

    def add(
        self,
        role: int,
        place: int,
        start: I64,
        stop: I64,
        account: I64 | int = -1,
        label: I64 | int = -1,
        row: I64 | int = -1,
        unit: I64 | int = -1,
        step: I64 | int = NOWHERE,
    ) -> I64:
        """The new ops' numbers."""
        n = len(start)
        columns = (start, stop, role, place, account, label, row, unit, step)
        self._columns.append(tuple(np.broadcast_to(column, n) for column in columns))
        self._count += n
        return np.arange(self._count - n, self._count)

    def need(self, need: I64, op: I64, weight: int = 0) -> None:
        """Op `op[i]` starts no sooner than `weight` after `need[i]` has stopped."""
        self._needs.append(Needs(need, op, np.full(len(op), weight, np.int64)))

    def account_of(self, accounts: list[Account]) -> I64:
        """The number of each in the profile's table."""
        return np.array([self.accounts.number(account) for account in accounts] or [0], np.int64)

    def labels_of(self, events: Events) -> I64:
        """The number of each of the events' names; the last one, for -1, is of the empty text."""
        return np.array([self.labels.number(name) for name in (*events.names, "")], np.int64)

    def profile(self, host: list[I64], begin: list[I64], end: list[I64], launcher: list[I32]) -> Profile:
        ops = Ops(*(np.concatenate(column).astype(np.int64) for column in zip(*self._columns)))
        return Profile(
            ops,
            fit(ops.start, ops.stop, join(self._needs), ops.role),
            tuple(account for account in self.accounts.values if isinstance(account, Account)),
            tuple(str(label) for label in self.labels.values),
            tuple(host),
            tuple(begin),
            tuple(end),
            tuple(launcher),
        )


class HostTimeline(NamedTuple):
    """What a rank's host did: stretch i is [edges[i], edges[i + 1]), with its account, label and unit."""

    edges: I64
    account: I64
    label: I64
    unit: I64


class Pauses(NamedTuple):
    """Stretches [begin, end), in order and apart, in which the host did nothing but wait; and for what: pair j says
    that the pause which ends at `until[j]` waited for op `awaited[j]`."""

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
        """The last op that has stopped at each time, -1 for none."""
        place = np.searchsorted(self.stop, time, "right") - 1
        return np.where(place >= 0, self.op[np.maximum(place, 0)], -1)


def add_host(draft: Draft, place: int, line: HostTimeline, cuts: I64, pauses: Pauses, marks: I64) -> HostOps:
    """The host's stretches as ops one after the other, cut at `cuts`, without the pauses. `marks`: starts of steps."""
    inside = (cuts > line.edges[0]) & (cuts < line.edges[-1])
    points = np.unique(np.concatenate([line.edges, cuts[inside], pauses.begin, pauses.end]))
    begin, end = points[:-1], points[1:]
    if len(pauses.begin):
        pause = np.maximum(np.searchsorted(pauses.begin, begin, "right") - 1, 0)
        awake = (begin < pauses.begin[pause]) | (begin >= pauses.end[pause])
        begin, end = begin[awake], end[awake]
    stretch = np.searchsorted(line.edges, begin, "right") - 1
    step = np.searchsorted(marks, begin, "right") - 1
    op = draft.add(HOST, place, begin, end, line.account[stretch], line.label[stretch], -1, line.unit[stretch], step)
    draft.need(op[:-1], op[1:])
    after = np.searchsorted(begin, pauses.until)
    some = after < len(op)
    draft.need(pauses.awaited[some], op[after[some]])
    return HostOps(op, begin, end)


def mark_of(events: Events) -> I64:
    """Starts of the rank's steps."""
    return np.array([mark.start for mark in events.marks], np.int64)
