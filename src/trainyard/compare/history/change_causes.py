"""Possible causes of a change in a series: commit, environment, and the accounts that changed.

An account is a category of time of a run's step ledger, such as `compute/matmul`. The range of a change is the points,
from `low` to `high`, at which it may have happened.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from trainyard import ledger as ledgers
from trainyard.compare.comparable import list_differences
from trainyard.compare.history.series_changes import SeriesChange
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_MAX_RUNS = 5
"""Runs on each side whose mean ledgers are compared."""


class AccountShift(msgspec.Struct, frozen=True, kw_only=True):
    account: Account
    before_ns: int
    after_ns: int

    @property
    def ns(self) -> int:
        return self.after_ns - self.before_ns


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """`differences`: differences between the last run before the change's range and the first one after it. `accounts`:
    changed accounts, the largest change first; `wall_ns`: their sum. None of these proves a cause."""

    differences: tuple[str, ...] = ()
    accounts: tuple[AccountShift, ...] = ()
    wall_ns: int = 0


def find_cause(change: SeriesChange, runs: Sequence[Run]) -> Cause:
    """Differences and changed accounts between the runs before a change and those after it. `runs`: those of the
    series' points."""
    last_before, first_after = max(0, change.low - 1), min(len(runs) - 1, max(change.high, change.until))
    old_ledger = _average_ledgers(runs[max(0, change.low - _MAX_RUNS) : change.low])
    new_ledger = _average_ledgers(runs[first_after : first_after + _MAX_RUNS])
    changes = ledgers.diff(old_ledger, new_ledger) if old_ledger and new_ledger else ()
    shifts = [
        AccountShift(account=account.account, before_ns=account.before_ns, after_ns=account.after_ns)
        for account in changes
        if account.ns
    ]
    return Cause(
        differences=tuple(list_differences(runs[last_before], runs[first_after])),
        accounts=tuple(sorted(shifts, key=lambda account: -abs(account.ns))),
        wall_ns=sum(account.ns for account in shifts),
    )


def _average_ledgers(runs: Sequence[Run]) -> Ledger | None:
    """Mean ledger of the runs that were profiled over a full step; None if there is none."""
    full_ledgers = [run.ledgers[-1] for run in runs if run.ledgers and not run.ledgers[-1].scope.partial]
    return ledgers.mean(full_ledgers) if full_ledgers else None
