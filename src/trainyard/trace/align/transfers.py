"""Which send of one rank is which receive of another: the k-th of a pair in one group, where both show as many of
the same sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard.events import I64
from trainyard.trace.align.survey import Survey


class Transfers(NamedTuple):
    """k point-to-point transfers: the places and entries (see `meetings`) of both ends, and their times, ns."""

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
