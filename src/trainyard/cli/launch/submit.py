"""`trainyard launch JOB.toml --on LAUNCHER`: submit a job and follow it."""

from __future__ import annotations

from typing import Any

import click

from trainyard.cli.launch.launch_options import JOB, JSON, launch_options, options_of


@click.command()
@JOB
@launch_options
@click.option("--detach", is_flag=True, help="Return when the job is submitted, without following it.")
@JSON
def command(job: str, on: str, detach: bool, as_json: bool, **given: Any) -> None:
    """Start the job in JOB.toml on a cluster, and follow it until it is over.

    Each node runs its part of the ranks under the job's supervisor; the head stores one run over all of them. The files
    of a launch are in $TRAINYARD_STORE/launches. Ctrl-C stops following; the job continues.

    Exit codes: 0 the job succeeded or was submitted, 2 bad input, 4 the job failed, was cancelled or left early.
    """
    from trainyard import api
    from trainyard.cli.launch.print_launch import print_report
    from trainyard.cli.support.output import say
    from trainyard.errors import CommandFailed

    try:
        report = api.launch(job, on=on, options=options_of(given), follow=not detach, say=say)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("A submitted job continues: `trainyard launch status` lists launches, `cancel` ends one.")
        raise
    print_report(report, as_json)
    if report.status.is_over and report.status.state != "ended":
        raise CommandFailed(
            f"launch {report.launch.id} {report.status.state}: {report.status.reason}".rstrip(": "),
            report.status.next_step or f"`trainyard launch logs {report.launch.id}` prints its output.",
        )
