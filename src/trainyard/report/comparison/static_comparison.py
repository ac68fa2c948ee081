"""The comparison of runs as static HTML, for readers whose browser runs no scripts."""

from __future__ import annotations

from msgspec.structs import replace

from trainyard.report.comparison.finding_changes import FINDING_STATUSES
from trainyard.report.comparison.runs_comparison import RunsComparison
from trainyard.report.render.html_tables import escaped, tables_html
from trainyard.report.view.comparison import accounts_table
from trainyard.report.view.operation_changes import operations_table
from trainyard.report.view.view import Column, Table


def comparison_html(comparison: RunsComparison) -> str:
    """The headline, warnings, settings that differ, and the accounts, operations and findings of each pair of runs.
    Names are escaped."""
    tables = [_settings(comparison)]
    for run, compared, findings in zip(comparison.runs[1:], comparison.comparisons, comparison.findings):
        pair = f"{comparison.base.letter} to {run.letter}"
        if compared:
            tables.append(replace(accounts_table(compared), title=f"Account, {pair}"))
            tables.append(
                replace(operations_table(compared.operations, compared.no_operations), title=f"Operation, {pair}")
            )
        rows = tuple(
            (finding.summary, FINDING_STATUSES[change.status], change.cost_change_ns / 1e6)
            for change in findings
            if (finding := change.after or change.before)
        )
        columns = (Column(title=""), Column(title="status"), Column(title="change of its cost, ms", digits=3))
        tables.append(Table(title=f"Finding, {pair}", notes=(), columns=columns, rows=rows))
    return "\n".join(
        (
            f"<h1>{escaped(comparison.headline)}</h1>",
            f"<p>{escaped(comparison.summary)}</p>",
            *(f"<p>{escaped(warning)}</p>" for warning in comparison.warnings),
            tables_html("", [table for table in tables if table.rows]),
        )
    )


def _settings(comparison: RunsComparison) -> Table:
    """The settings that differ, with a column for each run."""
    return Table(
        title="Setting",
        notes=(),
        columns=(Column(title=""), *(Column(title=f"{run.letter} {run.name}") for run in comparison.runs)),
        rows=tuple(
            (f"{row.kind} {row.key}", *(value or "" for value in row.values))
            for row in comparison.facts
            if row.status == "differs"
        ),
    )
