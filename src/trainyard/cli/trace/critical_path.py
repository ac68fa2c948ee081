"""`trainyard trace critical-path PATH...`."""

from __future__ import annotations

import click

from trainyard.cli.support.output import console, print_json, say
from trainyard.cli.trace.trace_options import FULL, JSON, WINDOW, TraceFiles, reads_traces


@click.command()
@WINDOW
@reads_traces
@FULL
@JSON
def command(files: TraceFiles, full: bool, as_json: bool) -> None:
    """Show the critical path of the steps: the chain of dependent ops that determines when they end.

    Only ops on the path can shorten the step. `trainyard trace what-if` predicts by how much: when an op on the path is
    shortened, another chain may become the critical one.
    """
    from rich.text import Text

    from trainyard import api
    from trainyard.report.render.fitted_table import plain
    from trainyard.report.render.terminal import print_table
    from trainyard.report.view.critical_path import headline, tables

    options = files._asdict()
    del options["formulas"]
    result = api.critical_path(options.pop("paths"), **options)
    for warning in result.warnings:
        say(warning)
    if as_json:
        print_json(result)
        return
    out = console(full=full)
    out.print(Text(plain(headline(result)), style="bold"))
    for table in tables(result, full):
        print_table(table, out)
