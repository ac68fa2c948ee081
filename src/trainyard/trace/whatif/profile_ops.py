"""A profile as ops with dependencies: device work, host work, and the meetings of ranks in collectives.

The ops of a rank with a device are its kernels and copies, and the host's work between launches. Those of a rank that
trains on a CPU are the stretches of the training thread and the collectives that other threads run. A collective that
is matched on other ranks, and a receive whose send is known, consists of two ops: its arrival (of zero length) and its
transfer, which starts when the last member has arrived.

Ops are numbered from 0 over all ranks; `op`, `need`, `begin` and `end` are such numbers. A need is a dependency: an op
starts after its needs have stopped (see `dependency_graph`). A row or interval is an index into the columns of a rank's
`Classified`; a rank index is the position of a rank in the list of ranks. All times are ns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.events import I32, I64, Events
from trainyard.ledger import Account
from trainyard.trace.whatif.dependency_graph import Graph, Needs, fit_graph, join_needs

HOST, WORK, ARRIVAL, MEETING, TRANSFER = range(5)
"""Values of `Ops.role`, in the order of ops that start at the same time. HOST: a stretch of a host thread; WORK: a
device interval, or a collective of a CPU, that waits for no other rank; ARRIVAL: the arrival of a rank at a collective
or transfer; MEETING: the instant at which all members have arrived; TRANSFER: the communication after that."""
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
    """Numbers for values, in order of first use. `values`: value -> its number."""

    def __init__(self) -> None:
        self.values: dict[object, int] = {}

    def number(self, value: object) -> int:
        """The number of a value; a new one if it was not used yet."""
        return self.values.setdefault(value, len(self.values))


class Draft:
    """Collects ops and needs, and builds a `Profile`. `accounts`, `labels`: the tables of the profile, to which an op's
    account and label are indices."""

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
        """Adds an op for each element of `start` and `stop` (ns), and returns their numbers.

        The other arguments are columns as in `Ops`, or one value for all ops.
        """
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
    """A rank's host over time: stretch i is [edges[i], edges[i + 1]) ns, with its account and label (numbers in the
    tables of the draft) and unit. One more edge than stretches."""

    edges: I64
    account: I64
    label: I64
    unit: I64


class Pauses(NamedTuple):
    """Sorted disjoint stretches [begin, end) ns in which the host only waited, and the ops that it waited for: the
    pause that ends at `until[j]` waited for op `awaited[j]`. A pause may have several of these."""

    begin: I64
    end: I64
    until: I64
    awaited: I64


class HostOps(NamedTuple):
    """A rank's host ops in order of time."""

    op: I64
    start: I64
    stop: I64

    def last_stopped_before(self, time: I64) -> I64:
        """The number of the last op that had stopped at each time (ns), -1 for none."""
        index = np.searchsorted(self.stop, time, "right") - 1
        return np.where(index >= 0, self.op[np.maximum(index, 0)], -1)


def add_host(draft: Draft, rank_index: int, line: HostTimeline, cuts: I64, pauses: Pauses, marks: I64) -> HostOps:
    """Adds a rank's host as successive ops, each of which needs the one before it.

    `line`: the stretches of the host; `cuts`: times (ns) at which they are cut in addition; `pauses`: waits, which give
    no ops: the op after a pause needs the ops that the pause waited for; `marks`: starts of steps in ns, sorted.
    """
    in_range = (cuts > line.edges[0]) & (cuts < line.edges[-1])
    points = np.unique(np.concatenate([line.edges, cuts[in_range], pauses.begin, pauses.end]))
    begin, end = points[:-1], points[1:]
    if len(pauses.begin):
        pause = np.maximum(np.searchsorted(pauses.begin, begin, "right") - 1, 0)
        is_awake = (begin < pauses.begin[pause]) | (begin >= pauses.end[pause])
        begin, end = begin[is_awake], end[is_awake]
    stretch = np.searchsorted(line.edges, begin, "right") - 1  # the stretch of each piece
    step = np.searchsorted(marks, begin, "right") - 1
    op = draft.add(
        HOST,
        rank_index,
        begin,
        end,
        account=line.account[stretch],
        label=line.label[stretch],
        unit=line.unit[stretch],
        step=step,
    )
    draft.need(op[:-1], op[1:])
    after = np.searchsorted(begin, pauses.until)  # the first piece after each pause
    has_op = after < len(op)
    draft.need(pauses.awaited[has_op], op[after[has_op]])
    return HostOps(op, begin, end)


def mark_of(events: Events) -> I64:
    """Starts of the rank's steps."""
    return np.array([mark.start for mark in events.marks], np.int64)
