"""Matches collectives across ranks, and sends with receives.

Collectives are matched by group and sequence number, else by order among those of the same kind. Transfers are matched
by order within their pair of ranks and group, if both ends have as many of the same sizes. A member is an entry of a
rank's survey: `rank_index` is the index of the survey, `entry` that of the collective in it. A meeting is a collective
whose members on all ranks were matched. `cross_rank.align_ranks` is the caller.
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
"""Collectives that no member leaves before the last one has arrived."""


class Meetings(NamedTuple):
    """m meetings (matched collectives) with k members in all, sorted by meeting and rank index. `first`: m + 1
    positions; meeting i has the members `first[i]` to `first[i + 1]`. The other columns have one element per member;
    `start` and `stop` are ns."""

    first: I64
    rank_index: I64
    entry: I64
    start: I64
    stop: I64

    @property
    def size(self) -> int:
        """Number of meetings, m."""
        return len(self.first) - 1

    @property
    def meeting(self) -> I64:
        """Number of the meeting, from 0, of each of the k members."""
        return np.repeat(np.arange(self.size), np.diff(self.first))

    @property
    def arrived(self) -> I64:
        """Time (ns) at which the last member of each meeting arrived."""
        return np.maximum.reduceat(self.start, self.first[:-1])

    @property
    def left(self) -> I64:
        """Time (ns) at which the first member of each meeting left."""
        return np.minimum.reduceat(self.stop, self.first[:-1])

    @property
    def late(self) -> I64:
        """The rank index of each meeting's last arrival; the highest index if several arrive at once."""
        order = np.lexsort((self.rank_index, self.start, self.meeting))
        return self.rank_index[order[self.first[1:] - 1]]

    def only(self, kept: NDArray[np.bool_]) -> Meetings:
        """The meetings for which `kept` (m booleans) is true."""
        sizes = np.diff(self.first)
        members = np.repeat(kept, sizes)
        first = np.concatenate([[0], np.cumsum(sizes[kept])]).astype(np.int64)
        return Meetings(first, *(column[members] for column in self[1:]))

    def overlapping(self) -> Meetings:
        """The meetings that, by their times, no member leaves before the last one has arrived."""
        return self.only(self.arrived < self.left)

    def on(self, start: Sequence[I64], stop: Sequence[I64]) -> Meetings:
        """These meetings on another clock: member i gets the times `start[rank_index[i]][entry[i]]` and `stop[...]`, in
        ns."""
        rows = [np.flatnonzero(self.rank_index == rank_index) for rank_index in range(len(start))]
        new_start, new_stop = self.start.copy(), self.stop.copy()
        for rank_index, own in enumerate(rows):
            new_start[own], new_stop[own] = start[rank_index][self.entry[own]], stop[rank_index][self.entry[own]]
        return self._replace(start=new_start, stop=new_stop)


def meetings(surveys: Sequence[Survey], names: Sequence[str] = SYMMETRIC) -> Meetings:
    """Matches the collectives called `names` that occur equally often on every member. Those whose group has a member
    without a survey, or whose number differs between members, are left out. Times are not checked."""
    all_ranks = frozenset(survey.facts.rank for survey in surveys)
    # A group without a list of ranks consists of all ranks, none of which may be missing.
    world = max((survey.facts.world for survey in surveys), default=0)
    world_sizes = (0, len(all_ranks)) if world <= len(all_ranks) else ()
    id_of_key: dict[tuple[object, ...], int] = {}  # matching key -> its number
    sizes: list[int] = []  # number of members by number of the key
    # Rows: number of the key, sequence number, rank index, start, entry; a column per collective.
    tables = [np.empty((5, 0), np.int64)]
    for rank_index, survey in enumerate(surveys):
        # Number of the key by kind, and by whether the collective has a sequence number; -1: cannot be matched.
        ids_by_kind = np.full((len(survey.kinds), 2), -1, np.int64)
        for row, kind in enumerate(survey.kinds):
            members = frozenset(kind.ranks) or (all_ranks if kind.members in world_sizes else frozenset())
            if kind.name in names and len(members) > 1 and survey.facts.rank in members and members <= all_ranks:
                for numbered in (0, 1):
                    ident = id_of_key.setdefault(_matching_key(kind, bool(numbered)), len(id_of_key))
                    ids_by_kind[row, numbered] = ident
                    if ident == len(sizes):
                        sizes.append(len(members))
        ident = ids_by_kind[survey.kind, (survey.seq >= 0).astype(np.int64)]
        entries = np.flatnonzero(ident >= 0)
        index = np.full(len(entries), rank_index)
        tables.append(np.stack([ident[entries], survey.seq[entries], index, survey.start[entries], entries]))
    table = np.concatenate(tables, axis=1)
    ident, seq, rank_index, _, entry = table[:, np.lexsort(table[::-1])]
    return _match_complete_runs(ident, seq, rank_index, entry, np.array(sizes, np.int64), surveys)


def _match_complete_runs(
    ident: I64, seq: I64, rank_index: I64, entry: I64, sizes: I64, surveys: Sequence[Survey]
) -> Meetings:
    """Matches collectives, given as columns that are sorted by `ident` (number of the matching key), `seq`,
    `rank_index` and start: within equal `ident` and `seq` (a block), the k-th rows of all ranks meet, if every member
    has equally many. `entry`: of each row in its survey; `sizes[ident]`: number of members that such collectives must
    have."""
    # A run: the rows of a block that are of one rank.
    run_of_row = _number_runs(ident, seq, rank_index)
    block_of_row = _number_runs(ident, seq)
    if not len(ident):
        return Meetings(np.zeros(1, np.int64), *[np.empty(0, np.int64)] * 4)
    run_lengths = np.bincount(run_of_row)
    first_of_run = np.cumsum(run_lengths) - run_lengths
    block_of_run = block_of_row[first_of_run]
    first_of_block = np.flatnonzero(np.diff(block_of_run, prepend=-1))
    members = np.bincount(block_of_run)
    same_count = np.minimum.reduceat(run_lengths, first_of_block) == np.maximum.reduceat(run_lengths, first_of_block)
    is_complete = same_count & (members == sizes[ident[first_of_run[first_of_block]]])
    rows = np.flatnonzero(is_complete[block_of_row])
    nth = np.arange(len(ident)) - first_of_run[run_of_row]
    rows = rows[np.lexsort((rank_index[rows], nth[rows], block_of_row[rows]))]
    meeting = _number_runs(block_of_row[rows], nth[rows])
    first = np.concatenate([np.flatnonzero(np.diff(meeting, prepend=-1)), [len(rows)]]).astype(np.int64)
    matched = Meetings(
        first=first, rank_index=rank_index[rows], entry=entry[rows], start=np.zeros_like(rows), stop=np.zeros_like(rows)
    )
    return matched.on([survey.start for survey in surveys], [survey.stop for survey in surveys])


def _number_runs(*columns: I64) -> I64:
    """Number, from 0, of the run of consecutive rows with equal values in all columns that each row belongs to."""
    if not len(columns[0]):
        return np.empty(0, np.int64)
    new = np.any([np.diff(column) != 0 for column in columns], axis=0)
    return np.concatenate([[0], np.cumsum(new)])


def _matching_key(kind: Collective, numbered: bool) -> tuple[object, ...]:
    """A key that is equal for collectives that may meet. `numbered`: they have sequence numbers, which distinguish
    them, so that the key does not contain the size."""
    if numbered:
        return (kind.group_name, kind.ranks, kind.name, True)
    # Only in an all-to-all may members send different amounts.
    size = kind.size if kind.name != "all_to_all" else 0
    return (kind.group_name, kind.ranks, kind.name, False, size)


class Transfers(NamedTuple):
    """k point-to-point transfers. `sender`, `receiver`: rank index of each end; `send`, `receive`: its entry in the
    survey of that rank; `sent_from`, `sent_until`, `received_from`, `received_until`: its start and stop, ns."""

    sender: I64
    send: I64
    receiver: I64
    receive: I64
    sent_from: I64
    sent_until: I64
    received_from: I64
    received_until: I64

    def on(self, start: Sequence[I64], stop: Sequence[I64]) -> Transfers:
        """These transfers on another clock. `start`, `stop`: by rank index, the times of its entries in ns."""
        sent, received = ([*zip(self.sender, self.send)], [*zip(self.receiver, self.receive)])
        times = [
            np.array([column[rank_index][entry] for rank_index, entry in ends], np.int64)
            for ends in (sent, received)
            for column in (start, stop)
        ]
        return Transfers(*self[:4], *times)

    def possible(self) -> Transfers:
        """The transfers whose receive does not end before the send begins."""
        kept = self.sent_from < self.received_until
        return Transfers(*(column[kept] for column in self))


def transfers(surveys: Sequence[Survey]) -> Transfers:
    """Matches sends with receives, in order within a pair of ranks and a group. Coalesced batches, which have several
    peers, are left out. Gloo's spans name no peer: in a job of two ranks it is the other one."""
    # (group name, ranks of the group, source rank, target rank) -> entries of (sends, receives).
    entries_by_pair: dict[tuple[object, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    index_of_rank = {survey.facts.rank: rank_index for rank_index, survey in enumerate(surveys)}
    pair_of_ranks = [survey.facts.world for survey in surveys] == [2, 2]
    peer_of_rank = dict(zip(index_of_rank, reversed(index_of_rank))) if pair_of_ranks else {}
    for survey in surveys:
        rank = survey.facts.rank
        for entry, kind_index in enumerate(survey.kind.tolist()):
            kind = survey.kinds[kind_index]
            has_no_peer = kind.name == "send_recv" and kind.peer < 0 and not survey.on_device
            peer = peer_of_rank.get(rank, -1) if has_no_peer else kind.peer
            if peer in index_of_rank and peer != rank:
                pair = (peer, rank) if kind.receives else (rank, peer)
                entries_by_pair[kind.group_name, kind.ranks, *pair][kind.receives].append(entry)
    matched_rows: list[tuple[int, int, int, int]] = []
    for (*_, source, target), (send_entries, receive_entries) in entries_by_pair.items():
        sender, receiver = index_of_rank[int(str(source))], index_of_rank[int(str(target))]
        if _message_sizes(surveys[sender], send_entries) == _message_sizes(surveys[receiver], receive_entries):
            matched_rows += [(sender, send, receiver, receive) for send, receive in zip(send_entries, receive_entries)]
    table = np.array(matched_rows, np.int64).reshape(-1, 4)
    matched = Transfers(*table.T, *[np.zeros(len(table), np.int64)] * 4)
    return matched.on([survey.start for survey in surveys], [survey.stop for survey in surveys])


def _message_sizes(survey: Survey, entries: Sequence[int]) -> list[int]:
    return [survey.kinds[survey.kind[entry]].size for entry in entries]
