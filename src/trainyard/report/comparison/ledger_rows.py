"""The ledgers of several runs as waterfalls on one scale, row by row: the time of each account in each run, and its
change with its verdict.

An account is a category of time of a training step, such as `comm/all_gather@dp_shard`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from trainyard import units, words
from trainyard.ledger import Account, Ledger
from trainyard.report.view.comparison import Comparison
from trainyard.report.view.waterfall import SMALL


class RowChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of a row from the first run. `low_ns`, `high_ns`, `verdict`: as in `ComparedAccount`; the verdict is
    empty for accounts that share a row and for runs that cannot be compared."""

    ns: int
    low_ns: int | None = None
    high_ns: int | None = None
    verdict: Literal["better", "worse", "same", "unknown", ""] = ""


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row: an account, or the small accounts of a kind, for which `account` is empty and `evidence` lists them. `ns`,
    `start_ns`: its time and the sum of the rows above in each run, None for a run without a ledger. `changes`: of each
    run but the first; None if one of the two has no ledger."""

    label: str
    account: str
    colour: str
    evidence: str = ""
    ns: tuple[int | None, ...]
    start_ns: tuple[int | None, ...]
    changes: tuple[RowChange | None, ...]


def arrange_ledgers(
    ledgers: Sequence[Ledger | None], comparisons: Sequence[Comparison | None]
) -> tuple[LedgerRow, ...]:
    """The rows of the accounts in order of precedence. `ledgers`: the mean ledger of each run; `comparisons`: of each
    run but the first, with the first."""
    times = [ledger.by_account() if ledger else None for ledger in ledgers]
    accounts = sorted({account for time in times for account in time or ()}, key=lambda account: account.rank)
    accounts = [account for account in accounts if any(time and time.get(account) for time in times)]
    rows: list[LedgerRow] = []
    start_ns = [0] * len(ledgers)
    for group in _group_small(accounts, ledgers):
        ns = [sum(time.get(account, 0) for account in group) if time is not None else None for time in times]
        rows.append(
            LedgerRow(
                label=group[0].label if len(group) == 1 else _label_small(group),
                account=str(group[0]) if len(group) == 1 else "",
                colour=group[0].colour if len(group) == 1 else words.KINDS[group[0].kind].colour,
                evidence=", ".join(account.label for account in group) if len(group) > 1 else "",
                ns=tuple(ns),
                start_ns=tuple(start if value is not None else None for start, value in zip(start_ns, ns)),
                changes=tuple(_change_of(group, comparison) for comparison in comparisons),
            )
        )
        start_ns = [start + (value or 0) for start, value in zip(start_ns, ns)]
    return tuple(rows)


def _group_small(accounts: Sequence[Account], ledgers: Sequence[Ledger | None]) -> list[list[Account]]:
    """The accounts, each alone, and those of a kind that are small in every run together at the end of the kind, if
    there are at least two."""
    groups: list[list[Account]] = []
    for kind in words.KINDS:
        of_kind = [account for account in accounts if account.kind == kind]
        small = [account for account in of_kind if all(_is_small(account, ledger) for ledger in ledgers if ledger)]
        folded = small if len(small) > 1 else []
        groups += [[account] for account in of_kind if account not in folded]
        groups += [folded] if folded else []
    return groups


def _is_small(account: Account, ledger: Ledger) -> bool:
    """Whether the account is less than `SMALL` of the step."""
    return ledger.by_account().get(account, 0) < SMALL * ledger.wall_ns


def _label_small(accounts: Sequence[Account]) -> str:
    """The label of a row of several small accounts of one kind."""
    return f"{words.KINDS[accounts[0].kind].label}: {units.counted(len(accounts), 'small account')}"


def _change_of(accounts: Sequence[Account], comparison: Comparison | None) -> RowChange | None:
    """The change of one account with its bounds and verdict, or the summed change of several."""
    if comparison is None:
        return None
    changes = [change for change in comparison.changes if change.account in accounts]
    if len(accounts) > 1 or not changes:
        return RowChange(ns=sum(change.ns for change in changes))
    change = changes[0]
    verdict = change.verdict if comparison.comparable else ""
    return RowChange(ns=change.ns, low_ns=change.low_ns, high_ns=change.high_ns, verdict=verdict)
