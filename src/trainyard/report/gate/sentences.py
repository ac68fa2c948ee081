"""A gate's result in sentences, which are the same in every output format."""

from __future__ import annotations

from statistics import median

from trainyard import units, words
from trainyard.compare.gate import sequential_test
from trainyard.compare.gate.changed_accounts import ChangedAccount, ChangedAccounts
from trainyard.compare.gate.gate_result import GateResult
from trainyard.compare.gate.machine_readings import MachineReading
from trainyard.compare.gate.verdict import Verdict
from trainyard.ledger import Account

LABELS = {"worse": "worse", "not worse": "not worse", "unclear": "not enough evidence"}
_SHOWN = 3
_LIKELY = 0.1
"""p-value below which an account is mentioned although it is not significant."""
_TIMES = 10
"""Growth, as a fraction, from which it is printed as a multiple."""


def headline(gate: GateResult) -> str:
    """`worse: step time +5.2 % (at least +3.1 %) after 7 pairs. Matmul did it: +4.8 ms a step.`"""
    parts = [f"{LABELS[gate.says]}: {decided(gate.first)}."]
    if gate.says == "worse":
        parts.append(culprit(gate.why))
    return " ".join(part for part in parts if part)


def description(gate: GateResult) -> str:
    """The compared sides, the number of pairs, the error probability and the margin."""
    rule, pairs = gate.verdicts[0].rule, f"{len(gate.runs)} pair{'s' if len(gate.runs) != 1 else ''}"
    return (
        f"{gate.base} → {gate.head}: {pairs} of runs of {gate.job}; each answer errs in "
        f"{100 * rule.alpha * len(gate.verdicts):g} % of cases at most; {100 * rule.margin:g} % matter"
    )


def decided(verdict: Verdict) -> str:
    """`step time +5.2 % (at least +3.1 %) after 7 pairs`"""
    name = words.metric(verdict.metric).label
    name = name if "/" in name else f"{name[0].lower()}{name[1:]}"
    pairs = f"after {verdict.pairs} pair{'s' if verdict.pairs != 1 else ''}"
    if words.metric(verdict.metric).better == "higher":
        name += " worse by"
    if verdict.says == "worse":
        return f"{name} {percent(verdict.change)} (at least {percent(verdict.low)}) {pairs}"
    if verdict.says == "not worse":
        faster = " It is better" if verdict.high is not None and verdict.high < 0 else ""
        return (
            f"{name} {percent(verdict.change)} (at most {percent(verdict.high)}) {pairs}{'.' if faster else ''}{faster}"
        )
    known = (verdict.low, verdict.high) != (None, None)
    bounds = f" (between {percent(verdict.low)} and {percent(verdict.high)})" if known else ""
    return f"{name} {percent(verdict.change)}{bounds} {pairs}{_more(verdict)}"


def _more(verdict: Verdict) -> str:
    if not verdict.more:
        return ""
    if verdict.pairs + verdict.more <= sequential_test.MOST:
        return f"; some {verdict.more} more would settle it"
    return f"; {sequential_test.MOST} pairs would hardly settle it: take a quieter machine, a longer job, or --together"


def percent(share: float | None) -> str:
    """A signed percentage; `?` if unknown, a multiple above 1,000 %."""
    if share is None:
        return "?"
    return f"{100 * share:+.1f} %" if share < _TIMES else f"{1 + share:,.0f} times"


def culprit(why: ChangedAccounts | None) -> str:
    """The accounts that caused the change, or why they are not known."""
    if why is None:
        return "The account responsible is not known: fewer than three pairs have ledgers of a whole step."
    named = [
        f"{label(account)} {time(account.ns)} a step ({percent(account.change)})" for account in why.named[:_SHOWN]
    ]
    parts: list[str] = []
    if named:
        parts.append(f"{', '.join(named)} did it.")
    if why.common.slower:
        parts.append(
            f"All accounts are {percent(why.common.change)} longer, equally: clocks, power or another process, not "
            "one operation."
        )
    return " ".join(parts) or _likeliest(why)


def _likeliest(why: ChangedAccounts) -> str:
    longer = [account for account in why.accounts if account.ns > 0 and account.chance < _LIKELY]
    if not longer:
        return "No single account stands out."
    likeliest = min(longer, key=lambda account: account.chance)
    return (
        f"No account is significant; likeliest {label(likeliest)}, {time(likeliest.ns)} a step "
        f"({percent(likeliest.change)}), by chance in {100 * likeliest.chance:.2g} %."
    )


def address(account: str, operations: ChangedAccounts) -> str:
    """The operations of an account that caused its change; empty if none is significant."""
    named = [
        f"{operation.account} {time(operation.ns)} ({percent(operation.change)})"
        for operation in operations.named[:_SHOWN]
    ]
    return f"In {Account.parse(account).label}: {', '.join(named)}." if named else ""


def reading(machine_reading: MachineReading) -> str:
    """`the machine's 0.clocks.sm: 1,980 MHz against 1,740 MHz, by chance in 0.02 %`"""
    unit = f" {machine_reading.unit}" if machine_reading.unit else ""
    was, now = (
        f"{value:,.4g}{unit}" if abs(value) < 1000 else f"{value:,.0f}{unit}"
        for value in (machine_reading.was, machine_reading.now)
    )
    return (
        f"the machine's {machine_reading.name}: {was} against {now}, by chance in {100 * machine_reading.chance:.2g} %"
    )


def shifts(why: ChangedAccounts | None) -> str:
    """Time that moved between accounts without changing the total."""
    moved = [account for account in why.accounts if account.shifted] if why else []
    if not moved:
        return ""
    listed = ", ".join(f"{label(account)} {time(account.ns)}" for account in moved)
    return f"Moved between accounts, with no net change: {listed}."


def label(account: ChangedAccount) -> str:
    return Account.parse(account.account).label


def time(ns: float) -> str:
    return f"{'+' if ns >= 0 else '-'}{units.show_time(abs(ns))}"


def figure(metric: str, values: tuple[float, ...]) -> str:
    """The median of the runs' values, in its unit."""
    middle, unit = median(values), words.metric(metric).unit
    if unit == "ns":
        return units.show_time(middle)
    if unit == "B":
        return units.show_size(middle)
    return units.show_count(middle) if unit == "1/s" else f"{100 * middle:.1f} %"
