"""What else changed at a change: the commit, what the runs were made with, and the account that moved."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from trainyard import ledger as ledgers
from trainyard.compare.comparable import provenance
from trainyard.compare.history.series_changes import SeriesChange
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_FEW = 5
"""Runs on either side whose mean ledgers are compared."""


class MovedAccount(msgspec.Struct, frozen=True, kw_only=True):
    account: Account
    before_ns: int
    after_ns: int

    @property
    def ns(self) -> int:
        return self.after_ns - self.before_ns


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """`differ`: what the run before the change's range and the first one after it do not share. `moved`: accounts, the
    one that moved most first; `wall_ns`: all of them together. None of these is proof."""

    differ: tuple[str, ...] = ()
    moved: tuple[MovedAccount, ...] = ()
    wall_ns: int = 0


def cause(change: SeriesChange, runs: Sequence[Run]) -> Cause:
    """`runs` are those of the series' points."""
    before, after = max(0, change.low - 1), min(len(runs) - 1, max(change.high, change.until))
    was, now = _mean(runs[max(0, change.low - _FEW) : change.low]), _mean(runs[after : after + _FEW])
    found = ledgers.diff(was, now) if was and now else ()
    moved = [
        MovedAccount(account=one.account, before_ns=one.before_ns, after_ns=one.after_ns) for one in found if one.ns
    ]
    return Cause(
        differ=tuple(provenance(runs[before], runs[after])),
        moved=tuple(sorted(moved, key=lambda one: -abs(one.ns))),
        wall_ns=sum(one.ns for one in moved),
    )


def _mean(runs: Sequence[Run]) -> Ledger | None:
    """Over runs; of those that were profiled over a full step."""
    whole = [run.ledgers[-1] for run in runs if run.ledgers and not run.ledgers[-1].scope.partial]
    return ledgers.mean(whole) if whole else None
