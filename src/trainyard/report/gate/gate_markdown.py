"""Gate results as GitHub-flavoured Markdown, for step summaries and comments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainyard import words
from trainyard.compare.gate.changed_accounts import ChangedAccounts
from trainyard.compare.gate.gate_result import GateResult
from trainyard.report.gate import sentences
from trainyard.report.render.markdown import escaped

_MARKS = {"worse": "🔴", "not worse": "🟢", "unclear": "🟡"}
_MOST_ACCOUNTS, _MOST_DIFFERENCES = 20, 20
"""Accounts, and differences between the sides, in one comment."""


def markdown(gate: GateResult) -> str:
    """The gate's result as Markdown for a pull request: verdict, metrics, changed accounts, and a list of notes."""
    parts = [
        f"## {_MARKS[gate.outcome]} {escaped(sentences.headline(gate))}",
        escaped(sentences.description(gate)),
        _table(
            ["metric", "base", "head", "worse by", "at least", "at most", "pairs", ""],
            (
                [
                    words.metric(verdict.metric).label,
                    sentences.figure(verdict.metric, gate.values[verdict.metric].base),
                    sentences.figure(verdict.metric, gate.values[verdict.metric].head),
                    sentences.percent(verdict.change),
                    sentences.percent(verdict.low),
                    sentences.percent(verdict.high),
                    str(verdict.pairs),
                    sentences.LABELS[verdict.outcome],
                ]
                for verdict in gate.verdicts
            ),
        ),
    ]
    if estimate := sentences.explain_estimate(gate):
        parts.append(escaped(estimate))
    if gate.changed_accounts:
        parts += ["### Account by account", _accounts(gate.changed_accounts)]
    parts += [
        escaped(sentences.name_operations(account, operations))
        for account, operations in gate.changed_operations.items()
    ]
    if shifted := sentences.shifts(gate.changed_accounts):
        parts.append(escaped(shifted))
    notes = [
        f"{difference.name}: {difference.before} against {difference.after}"
        for difference in gate.differences[:_MOST_DIFFERENCES]
    ]
    if len(gate.differences) > _MOST_DIFFERENCES:
        notes.append(f"{len(gate.differences) - _MOST_DIFFERENCES} more differences")
    parts.append(
        "\n".join(
            f"- {escaped(line)}" for line in [*notes, *map(sentences.reading, gate.changed_readings), *gate.caveats]
        )
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _accounts(changed: ChangedAccounts) -> str:
    """The Markdown table of the accounts that changed most, in ms per step, each without the change common to all of
    them, which is the last row if it was estimated."""
    rows = [
        [
            sentences.label(account),
            f"{account.before_ns / 1e6:,.3f}",
            f"{account.after_ns / 1e6:,.3f}",
            f"{account.ns / 1e6:+,.3f}",
            f"{sentences.percent(account.low)} … {sentences.percent(account.high)}",
            "shifted" if account.shifted else words.VERDICTS[account.verdict].label,
        ]
        for account in changed.by_interest()[:_MOST_ACCOUNTS]
    ]
    if changed.common.p_value < 1:
        between = f"{sentences.percent(changed.common.low)} … {sentences.percent(changed.common.high)}"
        rows.append([f"all accounts equally: {sentences.percent(changed.common.change)}", "", "", "", between, ""])
    return _table(["account", "base ms", "head ms", "own change, ms", "own change, between", ""], rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the columns between the first and the last are aligned to the right. Cells are escaped."""
    lines = [" | ".join(heads), " | ".join("---:" if 0 < at < len(heads) - 1 else "---" for at in range(len(heads)))]
    lines += [" | ".join(escaped(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)
