"""The waterfall: the accounts of a step (categories of its time) as bars, each of which starts at the end of the one
before, so that they add up to the wall time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from trainyard import units, words
from trainyard.ledger import WINDOW, Account, Ledger
from trainyard.report.view.view import Bar, KernelRow

SMALL = 0.005
"""Fraction of the step below which accounts of one kind share a bar."""

_IDEAL_COLOUR = "#c3d0f2"
_TOTAL_COLOUR = "#3f4347"


class _Step(NamedTuple):
    """A bar without its position."""

    label: str
    ns: int
    colour: str
    evidence: str = ""
    account: Account | None = None
    before_ns: int = 0
    """ns of the account that are in the bar before this one."""
    role: Literal["ideal", "step"] = "step"


def waterfall(
    mean: Ledger,
    ranks: dict[int, Ledger],
    kernels: Sequence[KernelRow],
    ideal: tuple[int, str] | None,
    profiled: bool = False,
) -> tuple[Bar, ...]:
    """The bars of a mean ledger; their `ns` add up to the last bar, the wall time.

    `ranks` give the whiskers, `kernels` (top rows) the evidence. `ideal`: (ns of the model's FLOPs at the best known
    rate, description of the rate); it splits matmul into that time and the excess. `profiled`: labels the total as
    profiled, because the unprofiled step time is known too.
    """
    ns_by_rank = [ledger.by_account() for ledger in ranks.values()]
    bars: list[Bar] = []
    start_ns = 0
    for step in _steps(mean, kernels, ideal):
        whiskers = _whiskers(step.account, start_ns - step.before_ns, ns_by_rank) if step.account else None
        bars.append(
            Bar(
                label=step.label,
                ns=step.ns,
                start_ns=start_ns,
                colour=step.colour,
                role=step.role,
                account=str(step.account or ""),
                evidence=step.evidence,
                whiskers=whiskers,
            )
        )
        start_ns += step.ns
    total = "window" if mean.scope.steps == (WINDOW,) else "step"
    label = f"{'profiled' if profiled else words.BASES[mean.basis].label} {total}".capitalize()
    return (*bars, Bar(label=label, ns=mean.wall_ns, start_ns=0, colour=_TOTAL_COLOUR, role="total"))


def _steps(mean: Ledger, kernels: Sequence[KernelRow], ideal: tuple[int, str] | None) -> list[_Step]:
    """The bars by kind of account in order of precedence: the large accounts, then one bar for the small ones. `ideal`:
    as in `waterfall`."""
    steps: list[_Step] = []
    accounts = {account: ns for account, ns in mean.by_account().items() if ns}
    for kind in words.KINDS:
        by_account = {account: ns for account, ns in accounts.items() if account.kind == kind}
        small = [account for account, ns in by_account.items() if ns < SMALL * mean.wall_ns]
        for account, ns in by_account.items():
            if account in small and len(small) > 1:
                continue
            evidence = _evidence(mean, account, kernels)
            step = _Step(label=account.label, ns=ns, colour=account.colour, evidence=evidence, account=account)
            if str(account) == "compute/matmul" and ideal and ideal[0] < ns:
                ideal_ns, rate = ideal
                steps.append(
                    _Step(label="Ideal matmul", ns=ideal_ns, colour=_IDEAL_COLOUR, evidence=rate, role="ideal")
                )
                step = step._replace(label="Matmul over ideal", ns=ns - ideal_ns, before_ns=ideal_ns)
            steps.append(step)
        if len(small) > 1:
            listed = ", ".join(f"{account.what} {units.show_time(by_account[account])}" for account in small[:4])
            label = f"{words.KINDS[kind].label}: {len(small)} small"
            small_ns = sum(by_account[account] for account in small)
            steps.append(_Step(label=label, ns=small_ns, colour=words.KINDS[kind].colour, evidence=listed))
    return steps


def _whiskers(account: Account, start_ns: int, ns_by_rank: Sequence[dict[Account, int]]) -> tuple[int, int] | None:
    """Ends in ns of the bar of `account`, which starts at `start_ns`, on the ranks with the least and with the most of
    the account; None for fewer than two ranks. `ns_by_rank`: of each rank, the time in each account."""
    if len(ns_by_rank) < 2:
        return None
    values = [by_account.get(account, 0) for by_account in ns_by_rank]
    return start_ns + min(values), start_ns + max(values)


def _evidence(mean: Ledger, account: Account, kernels: Sequence[KernelRow]) -> str:
    """What an account's bar consists of: its largest kernel or its meaning, number of intervals, overlapped time."""
    entries = [entry for entry in mean.entries if entry.account == account]
    hidden_ns = sum(entry.hidden_ns for entry in entries)
    count = sum(entry.count for entry in entries)
    parts: list[str] = []
    if account.kind == "unexplained":
        parts.append("not claimed by any rule")
    elif account.kind == "launch_gap":
        parts.append(words.GAPS[account.what].means.rstrip(".").replace("The host", "the host"))
    elif account_kernels := [row for row in kernels if row.account == str(account) and account.kind == "compute"]:
        largest, total_ns = account_kernels[0], sum(entry.ns for entry in entries)
        word = "most" if 2 * largest.ns > total_ns else "largest"
        parts.append(f"{word}: {_short(largest.name)} {units.show_time(largest.ns)}")
    if count:
        parts.append(f"{count:,} interval{'s' if count != 1 else ''}")
    if hidden_ns and account.kind in ("comm", "copy", "straggler"):
        parts.append(f"{units.show_time(hidden_ns)} more overlapped by compute")
    return " · ".join(parts)


def _short(name: str, max_length: int = 34) -> str:
    """A kernel's name without its template and argument lists, cut in the middle."""
    bare = name.removeprefix("void ").split("<")[0].split("(")[0] or name
    return bare if len(bare) <= max_length else f"{bare[: max_length // 2]}…{bare[-(max_length // 2 - 1) :]}"
