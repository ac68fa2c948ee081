"""`trainyard probe fit RUN... --machine FILE`: fit the constants of a machine to stored runs."""

from __future__ import annotations

from pathlib import Path

import click

from trainyard.cli.support.pipes import InputFile

_RUNS = 20
"""Rows of the table of runs on one screen."""


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=InputFile())
@click.option("--machine", metavar="NAME|FILE", required=True, type=InputFile(), help="The machine that the runs used.")
@click.option("--out", type=click.Path(path_type=Path), help="Write a machine file for `plan --machine`.")
@click.option("--full", is_flag=True, help="Print every run and all constants.")
@click.option("--json", "as_json", is_flag=True, help="Print the machine and the fit as JSON.")
def command(runs: tuple[str, ...], machine: str, out: Path | None, full: bool, as_json: bool) -> None:
    """Fit the constants of a machine to stored runs (ids, tags or folders), account by account.

    With runs of at least four jobs, the errors of predicting each job from the others calibrate the planner's 80 %
    prediction interval.
    """
    from trainyard.api.probe_machine import fit_to_runs
    from trainyard.cli.probe.print_machine import print_machine
    from trainyard.cli.support.output import say
    from trainyard.report.plans import probe_tables

    fitted = fit_to_runs(runs, machine, say)
    tables = [probe_tables.runs(fitted, None if full else _RUNS)]
    tables += [probe_tables.constants(fitted.machine)] if full else []
    print_machine(fitted, tables, out, full=full, as_json=as_json)
