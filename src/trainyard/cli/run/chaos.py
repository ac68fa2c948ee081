"""`trainyard run chaos PLAN.toml JOB.toml`: does the job recover from faults?"""

from __future__ import annotations

import click

from trainyard.cli.run.run_options import FULL, JSON, PORT, QUIET, TAG
from trainyard.cli.support.pipes import InputFile


@click.command()
@click.argument("plan", metavar="PLAN.toml", type=InputFile())
@click.argument("job", metavar="JOB.toml", type=InputFile())
@click.option("--against", metavar="RUN", help="A stored run without faults to compare losses with; default: run one.")
@TAG
@PORT
@JSON
@FULL
@QUIET
@click.pass_context
def command(
    context: click.Context,
    plan: str,
    job: str,
    against: str | None,
    tag: str,
    port: int | None,
    as_json: bool,
    full: bool,
    quiet: bool,
) -> None:
    """Run JOB.toml twice, the second time with the injected faults of PLAN.toml ([[fault]] kind, step, rank or node):
    killed, stopped or slow ranks, a full disk, a damaged checkpoint.

    Prints which rank or node was blamed for each fault, the time it cost, and whether the losses match, and stores the
    score as chaos.json in the run's folder. The exit code is 4 if the job did not recover.
    """
    from trainyard import api
    from trainyard.cli.run.print_run import show_chaos
    from trainyard.cli.run.run_options import session_of
    from trainyard.cli.support.output import say_error

    with session_of(tag, port, quiet) as session:
        result = api.chaos(plan, job, against=against, session=session)
    show_chaos(result, as_json, full)
    if result.error:
        say_error(f"error [{result.error.code}]: {result.error.message}", result.error.next_step)
        context.exit(result.error.exit_code)
