"""`trainyard history`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard.cli.support.pipes import InputFile

if TYPE_CHECKING:
    from trainyard.compare.history.accepted_changes import Accepted
    from trainyard.compare.history.sources.series import Series
    from trainyard.record import Run

_WORSE = 1


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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    job: str | None, metric: str | None, file: Path | None, accepted: Path | None, out: Path | None, as_json: bool
) -> None:
    """Find when performance changed: change points over the stored runs of JOB, a job's name or file.

    Distinguishes steps, drift, temporary excursions and spikes. Each change is listed with its commit, other
    differences between the runs, and the account that moved. A series without a change shows a false one in 1 % of
    cases.

    Exit codes: 0 no regression, 1 the newest change that was not accepted is a regression, 3 too few runs.
    """
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.compare.history.judge_changes import judge
    from trainyard.report.history import history_terminal as report

    series, runs = _load_series(job, metric, file)
    judged = judge(series, runs, _load_accepted(accepted))
    if as_json:
        print_json(report.as_plain(judged))
    else:
        report.print_history(judged, console())
    if out:
        from trainyard.report.history import history_page

        history_page.write(judged, out)
        say(f"wrote {out}")
    if judged.worse:
        raise click.exceptions.Exit(_WORSE)


def _load_series(job: str | None, metric: str | None, file: Path | None) -> tuple[Series, tuple[Run, ...]]:
    from trainyard.compare.history.sources import imported
    from trainyard.compare.history.sources import series as files
    from trainyard.compare.history.sources import stored_runs as runs
    from trainyard.errors import BadInput

    if (job is None) == (file is None):
        raise BadInput("Give either a job or --series.", "trainyard history JOB, or trainyard history --series FILE.")
    if file is not None:
        return (imported.load(file, metric) if imported.is_foreign(file) else files.load(file, metric or "value")), ()
    name = _job_name(job or "")
    return runs.series(name, _stored_runs(name), metric or "step_time")


def _job_name(job: str) -> str:
    """The name in a job file; any other argument is the name itself."""
    from trainyard import job_file

    return job_file.load(job).name if Path(job).suffix == ".toml" and Path(job).is_file() else job


def _stored_runs(name: str) -> list[Run]:
    """The complete runs of a job. Runs that cannot be read are skipped with a message."""
    from trainyard.cli.support.output import say
    from trainyard.errors import BadFile, UnknownName, nearest
    from trainyard.store.store import Store

    store = Store(say=say)
    rows = store.rows()
    if not any(row.job == name for row in rows):
        raise UnknownName(
            f"there are no runs of job {name!r} in {store.root}.", nearest(name, {row.job for row in rows})
        )
    runs: list[Run] = []
    for row in rows:
        if row.job == name and row.state == "complete":
            try:
                run = store.load(row.id)
            except BadFile as error:
                say(f"skipped: {error}")
            else:
                runs.extend([run] if run.state == "complete" else [])
    return runs


def _load_accepted(path: Path | None) -> Accepted:
    """Read the accepted changes; none if no file was named and the default file does not exist."""
    from trainyard.compare.history.accepted_changes import NAME, Accepted, read

    if path is None and not Path(NAME).is_file():
        return Accepted()
    return read(path or Path(NAME))
