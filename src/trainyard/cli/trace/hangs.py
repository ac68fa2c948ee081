"""`trainyard trace hangs DUMP...`."""

from __future__ import annotations

import click

from trainyard.cli.support.output import console, print_json, say
from trainyard.cli.support.pipes import InputFile
from trainyard.cli.trace.trace_options import FULL, JSON


@click.command()
@click.argument("dumps", nargs=-1, required=True, type=InputFile())
@click.option("--limit", default="512 MiB", show_default=True, help="Maximum size of a file.")
@FULL
@JSON
def command(dumps: tuple[str, ...], limit: str, full: bool, as_json: bool) -> None:
    """Find the ranks that make a job hang, from the dumps of torch's flight recorder.

    DUMPS are the files of all ranks, or a folder of them: the pickles that torch writes (comm_lib_trace_rank_<N>,
    earlier nccl_trace_rank_<N>; they are decoded as plain data and never executed), their JSON form, or the flight
    records in `logs/` of a run. A file rank<N>.stacks with the Python stacks of a rank (py-spy dump,
    faulthandler) in the same folder completes its record.
    """
    from rich.text import Text

    from trainyard import api
    from trainyard.report.render.fitted_table import plain
    from trainyard.report.render.terminal import print_table
    from trainyard.report.view.hang_tables import activity_table
    from trainyard.units import parse_size

    result = api.hangs(dumps, limit=parse_size(limit))
    for warning in result.warnings:
        say(warning)
    if as_json:
        print_json(result)
        return
    out = console(full=full)
    out.print(Text(plain(result.summary), style="bold"))
    for line in (result.evidence, result.remedy):
        if line:
            out.print(Text(plain(line)))
    if result.activities:
        print_table(activity_table(result, full), out)
