"""`trainyard trace reconcile PATH... --with hta`."""

from __future__ import annotations

from typing import Literal

import click

from trainyard.cli.support.output import console, print_json, say
from trainyard.cli.trace.trace_options import FULL, JSON, TraceFiles, reads_traces


@click.command()
@reads_traces
@click.option(
    "--with", "tool", type=click.Choice(["hta", "tracelens"]), required=True, help="Whose definitions to apply."
)
@FULL
@JSON
def command(files: TraceFiles, tool: Literal["hta", "tracelens"], full: bool, as_json: bool) -> None:
    """Show the figures of each rank by the definitions of another tool, and why they differ from the ledger's.

    HTA is Holistic Trace Analysis 0.5.0 (`get_temporal_breakdown`, `get_comm_comp_overlap`); TraceLens is 0.1.0 (the
    GPU timeline of its PyTorch report).
    """
    from trainyard import api
    from trainyard.report.render.terminal import print_table
    from trainyard.report.view.fact_tables import reconciliation_tables

    options = files._asdict()
    for unused in ("window", "formulas"):
        options.pop(unused)
    result = api.reconcile(options.pop("paths"), tool=tool, **options)
    for warning in result.warnings:
        say(warning)
    if as_json:
        print_json(result)
    else:
        for table in reconciliation_tables(result, full):
            print_table(table, console(full=full))
