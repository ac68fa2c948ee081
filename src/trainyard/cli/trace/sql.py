"""`trainyard trace sql QUERY PATH...`."""

from __future__ import annotations

import click

from trainyard.cli.support.output import console, print_json, say
from trainyard.cli.trace.trace_options import FORMULAS, FULL, JSON, WINDOW, TraceFiles, reads_traces

_ROWS = 30
"""Rows that fit one screen."""


@click.command()
@click.argument("query")
@WINDOW
@FORMULAS
@reads_traces
@FULL
@JSON
def command(files: TraceFiles, query: str, full: bool, as_json: bool) -> None:
    """Run QUERY, one SELECT statement, over the tables of a trace: work, idle, ledger, ... (extra `sql`).

    docs/reference.md lists the tables and their columns; so does the error message of a query that is invalid. The
    default output is the first 30 rows, --full and --json print up to 10,000.
    """
    from trainyard import api
    from trainyard.report.render.terminal import print_table
    from trainyard.report.view.fact_tables import query_table

    options = files._asdict()
    result = api.query(query, options.pop("paths"), **options)
    for warning in result.warnings:
        say(warning)
    if as_json:
        print_json(result)
    else:
        print_table(query_table(result), console(full=full), None if full else _ROWS)
    if result.more:
        say(f"Only the first {len(result.rows):,} rows are shown. Aggregate them, or add a LIMIT.")
