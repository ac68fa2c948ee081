"""A rank's window as a few stretches, each with the account that owns most of it, and the rank's place in the job.

`measure.py` summarises each of many ranks right after it is booked: a page or a terminal draws all of them from these
summaries, and loads the rows of a few ranks only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.events import I32, I64
from trainyard.ledger import Account
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.booking.owners import find_owners

RESOLUTION = 512
"""Stretches shorter than this fraction of the window are merged with their neighbours."""
_UNEXPLAINED = Account("unexplained")


class Stretches(NamedTuple):
    """k consecutive stretches that tile a rank's window: `bounds`[k + 1] in ns; `account`[k], index into `accounts`."""

    bounds: I64
    account: I32
    accounts: tuple[Account, ...]

    def merge_short(self, shortest_ns: int) -> Stretches:
        """These stretches, with those shorter than `shortest_ns` merged in groups of about that length. The account of
        a group is the one with the most time in it; neighbours with the same account are joined."""
        begin, end = self.bounds[:-1], self.bounds[1:]
        first = group_short(begin - self.bounds[0], end - self.bounds[0], shortest_ns)
        group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(begin))))
        cell = group * len(self.accounts) + self.account
        totals = np.bincount(cell, weights=end - begin, minlength=len(first) * len(self.accounts))
        account = totals.reshape(len(first), -1).argmax(axis=1).astype(np.int32)
        opens = np.append(True, account[1:] != account[:-1])
        bounds = np.append(begin[first][opens], self.bounds[-1])
        return self._replace(bounds=bounds, account=account[opens])


class RankSummary(NamedTuple):
    """A rank of many. `host`: its name, empty if unknown; `stage`: its pipeline stage, -1 if it is not in a pipeline or
    the files do not show it; `intervals`: number of its intervals of work."""

    rank: int
    host: str
    stage: int
    intervals: int
    stretches: Stretches


def summarise_rank(rank: RankTrace) -> RankSummary:
    """Summarises a booked rank. No time is left out: unexplained time is an account too."""
    events = rank.events
    return RankSummary(
        rank=events.rank,
        host=events.host_name,
        stage=_pipeline_stage(rank),
        intervals=len(rank.classified.start),
        stretches=owned_stretches(rank).merge_short((rank.parts[-1].stop - rank.parts[0].start) // RESOLUTION),
    )


def owned_stretches(rank: RankTrace) -> Stretches:
    """All stretches of a booked rank's window, without phases."""
    owners = find_owners(rank)
    accounts = tuple(dict.fromkeys([*(account for account, _ in rank.keys.pairs), _UNEXPLAINED]))
    numbers = {account: number for number, account in enumerate(accounts)}
    of_key = np.array([*(numbers[account] for account, _ in rank.keys.pairs), numbers[_UNEXPLAINED]], np.int32)
    return Stretches(bounds=np.append(owners.start, owners.stop[-1:]), account=of_key[owners.key], accounts=accounts)


def _pipeline_stage(rank: RankTrace) -> int:
    """The position of a rank in its pipeline's process group, -1 if it has none or the members are not recorded."""
    in_pipeline = [account.group == "pp" for account, _ in rank.keys.pairs]
    if not any(in_pipeline):
        return -1
    for row, collective in rank.classified.collectives.items():
        if in_pipeline[rank.classified.key[row]] and rank.events.rank in collective.ranks:
            return collective.ranks.index(rank.events.rank)
    return -1


def group_short(begin: I64, end: I64, shortest_ns: int) -> I64:
    """Indices of the first stretch of each group: stretches shorter than `shortest_ns` that begin in the same interval
    of that length form a group, others are groups of their own. `begin`, `end`: of each stretch in ns, in order."""
    if shortest_ns <= 0:
        return np.arange(len(begin))
    interval, is_long = begin // shortest_ns, end - begin >= shortest_ns
    is_separate = (interval[1:] != interval[:-1]) | is_long[1:] | is_long[:-1]
    return np.flatnonzero(np.append(True, is_separate)[: len(begin)])
