"""`trainyard run chaos-nodes JOB.toml`: does the job recover from the loss of processes and nodes?"""

from __future__ import annotations

import click

from trainyard.cli.run.run_options import FULL, JSON, QUIET, TAG
from trainyard.cli.support.pipes import InputFile


@click.command()
@click.argument("job", metavar="JOB.toml", type=InputFile())
@click.option("--nodes", type=click.IntRange(min=2), default=2, show_default=True, help="Number of nodes.")
@click.option("--kills", type=click.IntRange(min=1), default=10, show_default=True, help="Number of kills.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the kinds, targets and steps.")
@TAG
@JSON
@FULL
@QUIET
def command(job: str, nodes: int, kills: int, seed: int, tag: str, as_json: bool, full: bool, quiet: bool) -> None:
    """Run JOB.toml twice: on this machine without faults, then on several nodes, each with a process and a folder of
    its own as on several hosts, while ranks, agents, the supervisor and whole nodes are killed at random.

    Prints which rank or node was blamed for each kill, the time it cost, and whether the losses match, and stores the
    score as chaos.json in the run's folder. The exit code is 4 if the job did not recover.
    """
    from trainyard import api
    from trainyard.cli.run.print_run import show_chaos
    from trainyard.cli.run.run_options import session_of

    with session_of(tag, None, quiet) as session:
        result = api.chaos_nodes(job, nodes=nodes, kills=kills, seed=seed, session=session)
    show_chaos(result, as_json, full)
