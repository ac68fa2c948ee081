"""Which collectives of different ranks are one, and which send is which receive.

Collectives are matched by group and sequence number, else by order among like ones; transfers by order in their pair of
ranks and group, where both ends show as many of the same sizes. A member is an entry of a rank's survey: `place` is the
rank's place among the surveys, `entry` its collective's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I64, Collective
from trainyard.trace.align.survey import Survey

SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no member leaves before the last one has come."""


class Meetings(NamedTuple):
    """m meetings with k members in all, those of one side by side in order of place: meeting i has the members
    `first[i]` to `first[i + 1]`. Times are ns."""

    first: I64
    place: I64
    entry: I64
    start: I64
    stop: I64

    @property
    def size(self) -> int:
        """m."""
        return len(self.first) - 1

    @property
    def of(self) -> I64:
        """The meeting of each member."""
        return np.repeat(np.arange(self.size), np.diff(self.first))

    @property
    def arrived(self) -> I64:
        """When the last member of each came."""
        return np.maximum.reduceat(self.start, self.first[:-1])

    @property
    def left(self) -> I64:
        """When the first member of each left."""
        return np.minimum.reduceat(self.stop, self.first[:-1])

    @property
    def late(self) -> I64:
        """The place of each one's last arrival; of several at one instant, the last in order."""
        order = np.lexsort((self.place, self.start, self.of))
        return self.place[order[self.first[1:] - 1]]

    def only(self, kept: NDArray[np.bool_]) -> Meetings:
        """Those meetings of which `kept` (m booleans) is true."""
        sizes = np.diff(self.first)
        members = np.repeat(kept, sizes)
        first = np.concatenate([[0], np.cumsum(sizes[kept])]).astype(np.int64)
        return Meetings(first, *(column[members] for column in self[1:]))

    def overlapping(self) -> Meetings:
        """Without those that a member seems to leave before the last has come."""
        return self.only(self.arrived < self.left)

    def on(self, start: Sequence[I64], stop: Sequence[I64]) -> Meetings:
        """The same with other times: those of each place's entries."""
        rows = [np.flatnonzero(self.place == place) for place in range(len(start))]
        new_start, new_stop = self.start.copy(), self.stop.copy()
        for place, own in enumerate(rows):
            new_start[own], new_stop[own] = start[place][self.entry[own]], stop[place][self.entry[own]]
        return self._replace(start=new_start, stop=new_stop)


def meetings(surveys: Sequence[Survey], names: Sequence[str] = SYMMETRIC) -> Meetings:
    """Collectives called `names` that every member shows the same number of times. What cannot be matched for
    certain is left out; whether the times agree is for the caller to see."""
    all_ranks = frozenset(one.facts.rank for one in surveys)
    # A group that the file does not tell is of all ranks, and none of them may be missing here.
    unsaid = (0, len(all_ranks)) if max((one.facts.world for one in surveys), default=0) <= len(all_ranks) else ()
    idents: dict[tuple[object, ...], int] = {}
    sizes: list[int] = []
    tables = [np.empty((5, 0), np.int64)]
    for place, one in enumerate(surveys):
        number = np.full((len(one.kinds), 2), -1, np.int64)
        for row, kind in enumerate(one.kinds):
            members = frozenset(kind.ranks) or (all_ranks if kind.members in unsaid else frozenset())
            if kind.name in names and len(members) > 1 and one.facts.rank in members and members <= all_ranks:
                for numbered in (0, 1):
                    ident = idents.setdefault(_identity(kind, bool(numbered)), len(idents))
                    number[row, numbered] = ident
                    if ident == len(sizes):
                        sizes.append(len(members))
        ident = number[one.kind, (one.seq >= 0).astype(np.int64)]
        kept = np.flatnonzero(ident >= 0)
        tables.append(np.stack([ident[kept], one.seq[kept], np.full(len(kept), place), one.start[kept], kept]))
    table = np.concatenate(tables, axis=1)
    ident, seq, place, _, entry = table[:, np.lexsort(table[::-1])]
    return _complete(ident, seq, place, entry, np.array(sizes, np.int64), surveys)


def _complete(ident: I64, seq: I64, place: I64, entry: I64, sizes: I64, surveys: Sequence[Survey]) -> Meetings:
    """Of rows ordered by identity, number, place and start: the k-th of each place meet, where all members show the
    same number."""
    run = _changes(ident, seq, place)
    block_of_row = _changes(ident, seq)
    if not len(ident):
        return Meetings(np.zeros(1, np.int64), *[np.empty(0, np.int64)] * 4)
    runs = np.bincount(run)
    first_of_run = np.cumsum(runs) - runs
    block = block_of_row[first_of_run]
    first_of_block = np.flatnonzero(np.diff(block, prepend=-1))
    members = np.bincount(block)
    alike = np.minimum.reduceat(runs, first_of_block) == np.maximum.reduceat(runs, first_of_block)
    whole = alike & (members == sizes[ident[first_of_run[first_of_block]]])
    kept = np.flatnonzero(whole[block_of_row])
    nth = np.arange(len(ident)) - first_of_run[run]
    kept = kept[np.lexsort((place[kept], nth[kept], block_of_row[kept]))]
    meeting = _changes(block_of_row[kept], nth[kept])
    first = np.concatenate([np.flatnonzero(np.diff(meeting, prepend=-1)), [len(kept)]]).astype(np.int64)
    made = Meetings(first, place[kept], entry[kept], np.zeros_like(kept), np.zeros_like(kept))
    return made.on([one.start for one in surveys], [one.stop for one in surveys])


def _changes(*columns: I64) -> I64:
    """Numbers the stretches of rows over which all columns stay the same."""
    if not len(columns[0]):
        return np.empty(0, np.int64)
    new = np.any([np.diff(column) != 0 for column in columns], axis=0)
    return np.concatenate([[0], np.cumsum(new)])


def _identity(kind: Collective, numbered: bool) -> tuple[object, ...]:
    if numbered:
        return (kind.group_name, kind.ranks, kind.name, True)
    # Members of an all-to-all may send unlike amounts; of the others, none does.
    size = kind.size if kind.name != "all_to_all" else 0
    return (kind.group_name, kind.ranks, kind.name, False, size)


class Transfers(NamedTuple):
    """k point-to-point transfers: the places and entries of both ends, and their times, ns."""

    sender: I64
    send: I64
    receiver: I64
    receive: I64
    sent_from: I64
    sent_until: I64
    received_from: I64
    received_until: I64

    def on(self, start: Sequence[I64], stop: Sequence[I64]) -> Transfers:
        """The same with other times: those of each place's entries."""
        sent, received = ([*zip(self.sender, self.send)], [*zip(self.receiver, self.receive)])
        times = [
            np.array([column[place][entry] for place, entry in ends], np.int64)
            for ends in (sent, received)
            for column in (start, stop)
        ]
        return Transfers(*self[:4], *times)

    def possible(self) -> Transfers:
        """Without those whose receive seems to end before the send begins."""
        kept = self.sent_from < self.received_until
        return Transfers(*(column[kept] for column in self))


def transfers(surveys: Sequence[Survey]) -> Transfers:
    """A coalesced batch has no one peer and is left out. Gloo's spans name none: of two ranks it is the other one."""
    ends: dict[tuple[object, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    places = {one.facts.rank: place for place, one in enumerate(surveys)}
    other = dict(zip(places, reversed(places))) if [one.facts.world for one in surveys] == [2, 2] else {}
    for one in surveys:
        rank = one.facts.rank
        for entry, number in enumerate(one.kind.tolist()):
            kind = one.kinds[number]
            unsaid = kind.name == "send_recv" and kind.peer < 0 and not one.on_device
            peer = other.get(rank, -1) if unsaid else kind.peer
            if peer in places and peer != rank:
                pair = (peer, rank) if kind.receives else (rank, peer)
                ends[kind.group_name, kind.ranks, *pair][kind.receives].append(entry)
    rows: list[tuple[int, int, int, int]] = []
    for (*_, source, target), (sent, received) in ends.items():
        sender, receiver = places[int(str(source))], places[int(str(target))]
        if _sizes(surveys[sender], sent) == _sizes(surveys[receiver], received):
            rows += [(sender, send, receiver, receive) for send, receive in zip(sent, received)]
    table = np.array(rows, np.int64).reshape(-1, 4)
    made = Transfers(*table.T, *[np.zeros(len(table), np.int64)] * 4)
    return made.on([one.start for one in surveys], [one.stop for one in surveys])


def _sizes(one: Survey, entries: Sequence[int]) -> list[int]:
    return [one.kinds[one.kind[entry]].size for entry in entries]
