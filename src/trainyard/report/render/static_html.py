"""The figures, findings and tables of a view as static HTML, for readers whose browser runs no scripts."""

from __future__ import annotations

from trainyard import units
from trainyard.report.render.html_tables import escaped, tables_html
from trainyard.report.view.build_what_if import what_if_table
from trainyard.report.view.view import Column, Table, View


def view_html(view: View) -> str:
    """The title, key figures, findings, what-if replays, ledger and tables of a view. Names are escaped."""
    figures = "".join(
        f"<div><dt>{escaped(figure.label)}</dt><dd>{escaped(f'{figure.value} {figure.unit}')}</dd></div>"
        for figure in view.figures
    )
    findings = "".join(f"<li>{escaped(finding.summary)}</li>" for finding in view.findings)
    return "\n".join(
        (
            f"<h1>{escaped(view.title)}</h1>",
            f"<p>{escaped(view.subtitle)}</p>",
            f'<dl class="figures">{figures}</dl>',
            f"<h2>Findings</h2><ol>{findings}</ol>" if findings else "",
            tables_html("What if", [what_if_table(view.what_if)]) if view.what_if else "",
            tables_html("", [_ledger(view), *view.tables]),
        )
    )


def _ledger(view: View) -> Table:
    """The mean ledger as a table."""
    columns = (
        Column(title="Account"), Column(title="Phase"), Column(title="ns", digits=0), Column(title="Share"),
        Column(title="Hidden ns", digits=0), Column(title="Count", digits=0),
    )  # fmt: skip
    rows = tuple(
        (label, phase, ns, units.show_share(ns, view.wall_ns), hidden_ns, count)
        for _, label, phase, ns, hidden_ns, count in view.table
    )
    return Table(title="Every account", notes=(), columns=columns, rows=rows)
