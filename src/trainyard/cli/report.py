"""`trainyard report`."""

from __future__ import annotations

import click

from trainyard.cli.support.pipes import InputFile


@click.command()
@click.argument("runs", nargs=-1, required=True, type=InputFile(), metavar="RUN...")
@click.option("--out", "-o", type=click.Path(), help="File to write; its suffix selects the format. Default: RUN.html.")
@click.option("--strict", is_flag=True, help="Fail if a rank's file is damaged, instead of leaving it out.")
@click.option("--json", "as_json", is_flag=True, help="Print the report's name, file and format as JSON.")
def command(runs: tuple[str, ...], out: str | None, strict: bool, as_json: bool) -> None:
    """Write a report on RUN: a run (id prefix, tag or folder), a trace path, or a file written by `plan --json`.

    Formats by suffix of --out: .html (one self-contained page), .md, .csv, .xlsx, .json (the ledgers), .pftrace (a
    Perfetto trace of all ranks on one clock, with the account of each instant as a track), or .mllog (an MLPerf log
    with a stored run's losses by step). The exit code is 2 for a damaged run; its report lists the missing data.

    Several RUNs are compared in one report, each with the first: the settings that differ, the ledgers side by side
    with the change of each account and its verdict, the timelines aligned at a step, operations, findings, and curves.
    A file of plans and a run are compared in the same way. Formats: .html, .md, .csv or .json.
    """
    from trainyard import api
    from trainyard.cli.support.output import echo, print_json, say
    from trainyard.errors import BadInput

    written = api.report(runs, out=out, strict=strict, say=say)
    if as_json:
        print_json(written)
    else:
        echo(written.file)
    if written.state == "damaged":
        raise click.exceptions.Exit(BadInput.exit_code)
