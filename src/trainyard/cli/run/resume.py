"""`trainyard run resume RUN [JOB.toml]`: continue a run, or start a new one from its checkpoint."""

from __future__ import annotations

import click

from trainyard.cli.run.run_options import FULL, JSON, PORT, QUIET, TAG
from trainyard.cli.support.pipes import InputFile


@click.command()
@click.argument("run")
@click.argument("job", metavar="[JOB.toml]", required=False, type=InputFile())
@TAG
@PORT
@JSON
@FULL
@QUIET
def command(run: str, job: str | None, tag: str, port: int | None, as_json: bool, full: bool, quiet: bool) -> None:
    """Resume RUN, which was killed or failed, with its own id and job, from its last good checkpoint ([checkpoint]
    interval = N in the job saves them) or, without one, from the beginning.

    With JOB.toml: start a new run of JOB.toml from that checkpoint; layout, precision and other settings that do not
    change the training may differ.
    """
    from trainyard import api
    from trainyard.cli.run.print_run import show_run
    from trainyard.cli.run.run_options import session_of

    with session_of(tag, port, quiet) as session:
        result = api.resume(run, job, session=session)
    show_run(result, as_json, full)
