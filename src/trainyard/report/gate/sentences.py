"""A gate's result in sentences, which are the same in every output format. A gate compares the metrics of two
revisions, BASE and HEAD, over pairs of runs; an account is a category of a step's time."""

from __future__ import annotations

from statistics import median

from trainyard import units, words
from trainyard.compare.gate import sequential_test
from trainyard.compare.gate.changed_accounts import ChangedAccount, ChangedAccounts
from trainyard.compare.gate.gate_result import GateResult
from trainyard.compare.gate.machine_readings import MachineReading
from trainyard.compare.gate.verdict import Verdict
from trainyard.ledger import Account
from trainyard.report.view.next_step import NextStep

LABELS = {"worse": "worse", "not worse": "not worse", "unclear": "not enough evidence"}
_SHOWN = 3
"""Accounts or operations that a sentence names."""
_LIKELY = 0.1
"""p-value below which an account is mentioned although it is not significant."""
_SMALLEST_SHOWN = 0.0005
"""Smallest change, as a fraction, that a percentage with one decimal shows."""
_TIMES = 10
"""Growth, as a fraction, from which it is printed as a multiple."""


def headline(gate: GateResult) -> str:
    """`worse: step time +5.2 % (at least +3.1 %) after 7 pairs. Caused by Matmul, +4.8 ms per step (+9.6 %).`"""
    parts = [f"{LABELS[gate.outcome]}: {describe_verdict(gate.first)}."]
    if gate.outcome == "worse":
        parts.append(culprit(gate.changed_accounts))
    return " ".join(part for part in parts if part)


def description(gate: GateResult) -> str:
    """The compared sides, the number of pairs, the error probability and the margin."""
    rule = gate.verdicts[0].rule
    return (
        f"{gate.base} → {gate.head}: {units.counted(len(gate.runs), 'pair')} of runs of {gate.job}, margin "
        f"{100 * rule.margin:g} %, error rate at most {100 * rule.alpha * len(gate.verdicts):g} %"
    )


def describe_verdict(verdict: Verdict) -> str:
    """The change of one metric: `step time +5.2 % (at least +3.1 %) after 7 pairs`."""
    name = words.metric(verdict.metric).label
    name = name if "/" in name else f"{name[0].lower()}{name[1:]}"
    pairs = f"after {units.counted(verdict.pairs, 'pair')}"
    if words.metric(verdict.metric).better == "higher":
        name += " worse by"
    if verdict.outcome == "worse":
        return f"{name} {percent(verdict.change)} (at least {percent(verdict.low)}) {pairs}"
    if verdict.outcome == "not worse":
        faster = " It is better" if verdict.high is not None and verdict.high < 0 else ""
        return (
            f"{name} {percent(verdict.change)} (at most {percent(verdict.high)}) {pairs}{'.' if faster else ''}{faster}"
        )
    has_bounds = (verdict.low, verdict.high) != (None, None)
    bounds = f" (between {percent(verdict.low)} and {percent(verdict.high)})" if has_bounds else ""
    return f"{name} {percent(verdict.change)}{bounds} {pairs}{_pairs_needed(verdict)}"


def _pairs_needed(verdict: Verdict) -> str:
    """How many more pairs of runs would settle an open verdict, as the end of a sentence; empty if none are needed."""
    if not verdict.more_pairs:
        return ""
    if verdict.pairs + verdict.more_pairs <= sequential_test.MAX_PAIRS:
        return f"; about {verdict.more_pairs} more would settle it"
    return f"; {sequential_test.MAX_PAIRS} pairs would not settle it: use a quieter machine, a longer job or --together"


def explain_estimate(gate: GateResult) -> str:
    """Why a change is not that of the printed figures, if it is not for some metric; else empty."""
    if all(abs(verdict.change - _change_of_medians(gate, verdict)) < _SMALLEST_SHOWN for verdict in gate.verdicts):
        return ""
    differences = ", ".join(percent(_change_of_medians(gate, verdict)) for verdict in gate.verdicts)
    return (
        f"Base and head are medians of all runs, which differ by {differences}; the change is estimated from the ratio "
        "within each pair, so that drifts cancel."
    )


def _change_of_medians(gate: GateResult, verdict: Verdict) -> float:
    """The change from the median of all base runs to that of all head runs as a fraction, positive if head is worse. If
    a median is 0: `verdict.change`, the estimate from the ratios within the pairs. `verdict`: the decision on one
    metric."""
    values = gate.values[verdict.metric]
    base, head = median(values.base), median(values.head)
    if words.metric(verdict.metric).better == "higher":
        base, head = head, base
    return head / base - 1 if base and head else verdict.change


def percent(share: float | None) -> str:
    """A fraction as a signed percentage; `?` if unknown, `<0.1 %` for a change that rounds to nothing, a multiple above
    1,000 %."""
    if share is None:
        return "?"
    if 0 < abs(share) < _SMALLEST_SHOWN:
        return "<0.1 %"
    return f"{100 * share:+.1f} %" if share < _TIMES else f"{1 + share:,.0f} times"


def culprit(changed: ChangedAccounts | None) -> str:
    """A sentence on the accounts that caused the change, or why they are not known. `changed`: the accounts of both
    sides; None if too few pairs have ledgers."""
    if changed is None:
        return "The responsible account is unknown: fewer than three pairs have ledgers of a full step."
    named = [
        f"{label(account)}, {time(account.ns)} per step ({percent(account.change)})"
        for account in changed.culprits[:_SHOWN]
    ]
    parts: list[str] = []
    if named:
        parts.append(f"Caused by {'; '.join(named)}.")
    if changed.common.slower:
        parts.append(
            f"All accounts take {percent(changed.common.change)} longer: the cause is the clocks, power or another "
            "process, not one operation."
        )
    return " ".join(parts) or _likeliest(changed)


def _likeliest(changed: ChangedAccounts) -> str:
    """A sentence on the account that got longer with the smallest p-value, when no change is significant."""
    longer = [account for account in changed.accounts if account.ns > 0 and account.p_value < _LIKELY]
    if not longer:
        return "No single account stands out."
    likeliest = min(longer, key=lambda account: account.p_value)
    return (
        f"No account changed significantly; the likeliest is {label(likeliest)}, {time(likeliest.ns)} per step "
        f"({percent(likeliest.change)}, p = {likeliest.p_value:.2g})."
    )


def name_operations(account: str, operations: ChangedAccounts) -> str:
    """The operations of an account that caused its change; empty if none is significant."""
    named = [
        f"{operation.account} {time(operation.ns)} ({percent(operation.change)})"
        for operation in operations.culprits[:_SHOWN]
    ]
    return f"In {Account.parse(account).label}: {', '.join(named)}." if named else ""


def reading(machine_reading: MachineReading) -> str:
    """A sentence on a reading of the machine that changed between the runs of the base and those of the head:
    `0.clocks.sm of the machine changed from 1,980 MHz to 1,740 MHz (p = 0.0002)`."""
    unit = f" {machine_reading.unit}" if machine_reading.unit else ""
    base_value, head_value = (
        f"{value:,.4g}{unit}" if abs(value) < 1000 else f"{value:,.0f}{unit}"
        for value in (machine_reading.before, machine_reading.after)
    )
    return (
        f"{machine_reading.name} of the machine changed from {base_value} to {head_value} "
        f"(p = {machine_reading.p_value:.2g})"
    )


def shifts(changed: ChangedAccounts | None) -> str:
    """A sentence on time that moved between accounts without changing their sum; empty if there is none."""
    moved = [account for account in changed.accounts if account.shifted] if changed else []
    if not moved:
        return ""
    listed = ", ".join(f"{label(account)} {time(account.ns)}" for account in moved)
    return f"Moved between accounts, with no net change: {listed}."


def label(account: ChangedAccount) -> str:
    """The name of an account in words."""
    return Account.parse(account.account).label


def time(ns: float) -> str:
    """A difference of times with its sign and unit."""
    return f"{'+' if ns >= 0 else '-'}{units.show_time(abs(ns))}"


def figure(metric: str, values: tuple[float, ...]) -> str:
    """The median of the runs' values of a metric, formatted with its unit."""
    middle, unit = median(values), words.metric(metric).unit
    if unit == "ns":
        return units.show_time(middle)
    if unit == "B":
        return units.show_size(middle)
    return units.show_count(middle) if unit == "1/s" else f"{100 * middle:.1f} %"


def explain(gate: GateResult) -> tuple[str, ...]:
    """Sentences on the operations of the responsible accounts, and on time that moved between accounts."""
    operations = (
        name_operations(account, changed_operations) for account, changed_operations in gate.changed_operations.items()
    )
    return tuple(line for line in (*operations, shifts(gate.changed_accounts)) if line)


def suggest_commands(gate: GateResult) -> tuple[NextStep, ...]:
    """The next command: a self-check if the verdict is unclear, a diff of the last pair if it is worse."""
    base, head = gate.runs[-1]
    if gate.outcome == "not worse":
        return ()
    if gate.outcome == "unclear":
        return (
            NextStep(
                command="trainyard gate self-check JOB.toml | -- COMMAND", purpose="the smallest slowdown detected here"
            ),
        )
    return (NextStep(command=f"trainyard diff {base} {head}", purpose="the last pair, account by account"),)
