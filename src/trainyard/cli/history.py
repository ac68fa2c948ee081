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
@click.option("--metric", help="Which figure of a run, account, or benchmark [default: step_time; of a file: value]")
@click.option(
    "--series",
    "file",
    type=InputFile(Path),
    help="A JSON or CSV file, or pytest-benchmark's or asv's folder, instead.",
)
@click.option(
    "--accepted",
    type=InputFile(Path),
    help="Changes that are known, resets [default: trainyard-history.toml]",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write it as a page, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    job: str | None, metric: str | None, file: Path | None, accepted: Path | None, out: Path | None, as_json: bool
) -> None:
    """Since when is it slower? Change points over the stored runs of JOB, a job's name or its file.

    Steps are told from drift, from what went away again and from spikes; at each stand the commit, what else differed
    between the runs, and the account that moved. One series without a change in a hundred shows one.

    Ends with 1 where the newest change that nobody has accepted is for the worse, with 3 where there are too few runs.
    """
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.compare.history.judge_changes import judge
    from trainyard.report.history import history_terminal as report

    series, runs = _asked(job, metric, file)
    judged = judge(series, runs, _said(accepted))
    if as_json:
        print_json(report.as_plain(judged))
    else:
        report.print_history(judged, console())
    if out:
        from trainyard.report.history import history_page

        history_page.write(judged, out)
        say(f"{out} is written.")
    if judged.worse:
        raise click.exceptions.Exit(_WORSE)


def _asked(job: str | None, metric: str | None, file: Path | None) -> tuple[Series, tuple[Run, ...]]:
    from trainyard.compare.history.sources import imported
    from trainyard.compare.history.sources import series as files
    from trainyard.compare.history.sources import stored_runs as runs
    from trainyard.errors import BadInput

    if (job is None) == (file is None):
        raise BadInput("a history is of a job or of a file, one of them.", "trainyard history JOB, or --series FILE.")
    if file is not None:
        return (imported.load(file, metric) if imported.is_foreign(file) else files.load(file, metric or "value")), ()
    name = _name(job or "")
    return runs.series(name, _stored(name), metric or "step_time")


def _name(job: str) -> str:
    """A job file's name, else the word itself."""
    from trainyard import job_file

    return job_file.load(job).name if Path(job).suffix == ".toml" and Path(job).is_file() else job


def _stored(name: str) -> list[Run]:
    """The complete runs of the job of that name. One that cannot be read is passed over, and it is said."""
    from trainyard.cli.support.output import say
    from trainyard.errors import BadFile, UnknownName, nearest
    from trainyard.store.store import Store

    store = Store(say=say)
    rows = store.rows()
    if not any(row.job == name for row in rows):
        raise UnknownName(f"no run of a job {name!r} is in {store.root}.", nearest(name, {row.job for row in rows}))
    found: list[Run] = []
    for row in rows:
        if row.job == name and row.state == "complete":
            try:
                run = store.load(row.id)
            except BadFile as error:
                say(f"passed over: {error}")
            else:
                found.extend([run] if run.state == "complete" else [])
    return found


def _said(path: Path | None) -> Accepted:
    """The file's, which where nobody named it need not be there."""
    from trainyard.compare.history.accepted_changes import NAME, Accepted, read

    if path is None and not Path(NAME).is_file():
        return Accepted()
    return read(path or Path(NAME))
