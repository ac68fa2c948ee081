"""The comparison of two or more runs as tables, for Markdown and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainyard import units, words
from trainyard.report.comparison.finding_changes import FINDING_STATUSES, FindingChange
from trainyard.report.comparison.runs_comparison import RunsComparison
from trainyard.report.render import csv_tables
from trainyard.report.render.markdown import code, escaped, table_text
from trainyard.report.view.comparison import ComparedAccount
from trainyard.report.view.operation_changes import show_calls, show_match, show_path

_MOST_OPERATIONS = 20
_CSV_HEADS = (
    "base", "run", "account", "label", "before_ns", "after_ns", "change_ns", "low_ns", "high_ns", "verdict",
)  # fmt: skip


def csv_text(comparison: RunsComparison) -> str:
    """A row for each account and each run but the first: its time in both, the change and its verdict. The step is the
    sum of the rows of a run."""
    rows: list[Sequence[Any]] = []
    for run, compared in zip(comparison.runs[1:], comparison.comparisons):
        for change in compared.changes if compared else ():
            verdict = change.verdict if compared and compared.comparable else ""
            rows.append(
                (
                    comparison.base.name, run.name, str(change.account), change.account.label, change.before_ns,
                    change.after_ns, change.ns, change.low_ns, change.high_ns, verdict,
                )
            )  # fmt: skip
    return csv_tables.text_of(_CSV_HEADS, rows)


def markdown_text(comparison: RunsComparison) -> str:
    """The comparison as GitHub-flavoured Markdown: settings that differ, ledgers, operations, findings, notes."""
    parts = [f"## {escaped(comparison.headline)}", escaped(comparison.summary)]
    parts += [f"> **{escaped(warning)}**" for warning in comparison.warnings]
    parts += ["### Settings that differ", _facts(comparison)]
    for run, compared in zip(comparison.runs[1:], comparison.comparisons):
        title = f"{comparison.base.letter} {comparison.base.name} → {run.letter} {run.name}"
        if compared:
            parts += [
                f"### {escaped(title)}",
                _accounts(compared.changes, compared.comparable, comparison, run.wall_ns),
            ]
            if compared.operations:
                parts.append(_operations(compared.operations.largest))
    for run, findings in zip(comparison.runs[1:], comparison.findings):
        if findings:
            parts += [f"### Findings: {escaped(comparison.base.name)} → {escaped(run.name)}", _findings(findings)]
    notes = [*comparison.notes, *comparison.limits]
    parts.append("\n".join(f"- {escaped(line)}" for line in notes))
    return "\n\n".join(filter(None, parts)) + "\n"


def _facts(comparison: RunsComparison) -> str:
    """The Markdown table of the settings that differ, a column for each run; a sentence if there are none."""
    differing = [row for row in comparison.facts if row.status == "differs"]
    if not differing:
        return "No recorded setting differs."
    heads = ("setting", *(f"{run.letter} {escaped(run.name)}" for run in comparison.runs))
    rows = [
        (escaped(f"{row.kind} {row.key}"), *("" if value is None else code(value) for value in row.values))
        for row in differing
    ]
    return table_text(heads, "l" * len(heads), rows)


def _accounts(changes: Sequence[ComparedAccount], comparable: bool, comparison: RunsComparison, after_ns: int) -> str:
    """The Markdown table of the accounts in ns, the largest change first, and of the step. `after_ns`: the step of the
    second run; `comparable`: whether changes have verdicts."""
    rows = [
        (
            escaped(change.account.label), units.show_ns(change.before_ns), units.show_ns(change.after_ns),
            f"{change.ns:+,}", words.VERDICTS[change.verdict].label if comparable else "",
        )
        for change in sorted(changes, key=lambda change: -abs(change.ns))
    ]  # fmt: skip
    before_ns = comparison.base.wall_ns
    step = ("**step**", units.show_ns(before_ns), units.show_ns(after_ns), f"**{after_ns - before_ns:+,}**", "")
    return table_text(("account", "before ns", "after ns", "change ns", "verdict"), "lrrrl", [*rows, step])


def _operations(changes: Sequence[Any]) -> str:
    """The Markdown table of the operations that changed most, in ns."""
    rows = [
        (
            code(show_path(change.path)), units.show_ns(change.before_ns), units.show_ns(change.after_ns),
            f"{change.ns:+,}", escaped(show_match(change)), show_calls(change),
        )
        for change in changes[:_MOST_OPERATIONS]
    ]  # fmt: skip
    heads = ("operation", "before ns", "after ns", "change ns", "match", "calls per step")
    return table_text(heads, "lrrrlr", rows)


def _findings(changes: Sequence[FindingChange]) -> str:
    """The Markdown table of the findings of two runs."""
    rows: list[tuple[str, ...]] = []
    for change in changes:
        finding = change.after or change.before
        if finding:
            rows.append((FINDING_STATUSES[change.status], escaped(finding.summary), f"{change.cost_change_ns:+,}"))
    return table_text(("status", "finding", "change of its cost, ns"), "llr", rows)
