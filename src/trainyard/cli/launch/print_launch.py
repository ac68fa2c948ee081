"""Print launches and their status."""

from __future__ import annotations

from trainyard.cli.support.output import console, echo, print_json, say
from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table
from trainyard.run.launches.launch_job import describe
from trainyard.run.launches.launch_record import LaunchList, LaunchReport
from trainyard.units import counted

_MOST = 40
"""Number of launches on one screen."""


def print_report(report: LaunchReport, as_json: bool) -> None:
    """Print a launch and its status, as JSON or as text, with the next step."""
    if as_json:
        print_json(report)
        return
    launch, status = report.launch, report.status
    size = f"{counted(launch.ranks, 'rank')} on {counted(launch.nodes, 'node')}"
    console().print(f"launch {launch.id}: {launch.job}, {size}, {launch.on} job {launch.scheduler_id}")
    console().print(describe(status), soft_wrap=False)
    if status.next_step:
        console().print(status.next_step)


def print_launches(launches: LaunchList, as_json: bool, full: bool) -> None:
    """Print the stored launches, as JSON or as a table; `full`: all of them, not one screen."""
    if as_json:
        print_json(launches)
        return
    rows = launches.launches
    if not rows:
        say("There are no launches. `trainyard launch JOB.toml --on slurm` makes the first.")
        return
    shown = rows if full or len(rows) <= _MOST else rows[:_MOST]
    columns = (
        Column(title="id", id=True), Column(title="job", optional=True), Column(title="on"),
        Column(title="scheduler's id", optional=True),
        Column(title="nodes", digits=0), Column(title="ranks", digits=0),
        Column(title="when (UTC)", id=True, optional=True),
    )  # fmt: skip
    cells = tuple(
        (row.id, row.job, row.on, row.scheduler_id, row.nodes, row.ranks, row.started[:16].replace("T", " "))
        for row in shown
    )
    print_table(Table(title="id", notes=(), columns=columns, rows=cells), console(full=full))
    if len(shown) < len(rows):
        echo(f"{len(rows) - len(shown):,} older launches: --full lists them.")
