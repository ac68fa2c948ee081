"""The time of each larger account of the mean step on each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trainyard import ledger as ledgers_of
from trainyard.events import I64
from trainyard.ledger import Account, Ledger
from trainyard.report.view.waterfall import SMALL


class AccountTimes(NamedTuple):
    """`ns`[accounts, ranks]: ns of a step. `ranks`: their numbers."""

    accounts: tuple[Account, ...]
    ranks: tuple[int, ...]
    ns: I64


def account_times(ranks: Mapping[int, Ledger], mean: Ledger) -> AccountTimes:
    """The times of the accounts that are not small in the `mean` step. `ranks`: rank -> its mean ledger."""
    accounts = tuple(account for account, ns in mean.by_account().items() if ns >= SMALL * mean.wall_ns)
    times = [ledger.by_account() for ledger in ranks.values()]
    rows = [[own.get(account, 0) for own in times] for account in accounts]
    return AccountTimes(accounts, tuple(ranks), np.array(rows, np.int64).reshape(len(accounts), len(times)))


def per_rank(ledgers: Sequence[Ledger]) -> dict[int, Ledger]:
    """Rank -> the mean ledger of its full steps, or of all its parts if none is full. `ledgers`: one for each rank and
    step; others are ignored."""
    by_rank: dict[int, list[Ledger]] = {}
    for ledger in ledgers:
        if ledger.scope.reduce == "one" and ledger.scope.ranks:
            by_rank.setdefault(ledger.scope.ranks[0], []).append(ledger)
    return {
        rank: ledgers_of.mean([ledger for ledger in rank_ledgers if not ledger.scope.partial] or rank_ledgers)
        for rank, rank_ledgers in sorted(by_rank.items())
    }
