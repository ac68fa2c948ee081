"""`trainyard history`."""

from __future__ import annotations

from pathlib import Path

import click

from trainyard.cli.support.pipes import InputFile


@click.command()
@click.argument("job", required=False, type=InputFile())
@click.option("--metric", help="Metric, account or benchmark to follow [default: step_time; with --series: value]")
@click.option(
    "--series",
    "file",
    type=InputFile(Path),
    help="Use this series instead: a JSON or CSV file, or the results folder of pytest-benchmark or asv.",
)
@click.option(
    "--accepted",
    type=InputFile(Path),
    help="File of accepted changes and resets [default: trainyard-history.toml]",
)
@click.option("--out", type=click.Path(path_type=Path), help="Also write an HTML page.")
@click.option("--full", is_flag=True, help="Print every change, with all differences between its runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes and the series as JSON.")
@click.pass_context
def command(
    context: click.Context,
    job: str | None,
    metric: str | None,
    file: Path | None,
    accepted: Path | None,
    out: Path | None,
    full: bool,
    as_json: bool,
) -> None:
    """Find when performance changed: change points over the stored runs of JOB, a job's name or file.

    Distinguishes steps, drift, temporary excursions and spikes. Each change is listed with its commit, other
    differences between the runs, and the account that moved. A series without a change shows a false one in 1 % of
    cases.

    Exit codes: 0 no regression, 1 the newest change that was not accepted is a regression, 3 too few runs.
    """
    from trainyard import api
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.report.history.history_terminal import print_history

    history = api.history(job, metric=metric, series=file, accepted=accepted, say=say)
    if as_json:
        print_json(history)
    else:
        print_history(history, console(full=full), full)
    if out:
        from trainyard.report.history import history_page

        history_page.write(history, out)
        say(f"wrote {out}")
    context.exit(history.exit_code)
