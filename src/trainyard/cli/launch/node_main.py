"""`python -m trainyard.cli.launch.node_main`: one node's process of a job on several hosts. Launchers run it on each.

Node 0 is the head: it runs the job, with the supervisor, and stores the run. The others run an agent that connects to
the supervisor. All of them need the job's token in the environment variable `TRAINYARD_JOB_TOKEN`, a random text that the launcher
draws for each job.

Exit codes: 0: the job is complete; 75: it saved its state and left on request, so that it can be started again with the
same job id, which resumes it; 2, 4 and 70: as `trainyard` has them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from trainyard.cli.main import exit_code_of


@click.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of this node for the job's files. It need not be shared with other nodes.",
)
@click.option("--job-id", required=True, help="Id of the job; the same on all nodes, and after a requeue.")
@click.option("--nodes", type=click.IntRange(min=1), required=True, help="Number of nodes.")
@click.option("--node", type=click.IntRange(min=0), required=True, help="Index of this node; 0 is the head.")
@click.option("--head", required=True, metavar="HOST:PORT", help="Address of the head, at which all nodes meet.")
@click.option(
    "--job", metavar="JOB.toml", default=None, help="Job file; only the head reads it. Default: FOLDER/job.toml."
)
@click.option(
    "--shared",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder that all nodes share, for checkpoints. Without it the job cannot save any.",
)
@click.option(
    "--gather-s",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Seconds that the head waits for nodes, and a node for its head, at the start and after a loss.",
)
@click.option(
    "--notice-signal",
    metavar="NAME",
    default="SIGTERM",
    show_default=True,
    help="Another signal than SIGTERM that asks the job to save its state and leave.",
)
@click.option("--tag", default="", help="Name of the run; only the head uses it.")
def command(
    folder: Path,
    job_id: str,
    nodes: int,
    node: int,
    head: str,
    job: str | None,
    shared: Path | None,
    gather_s: float,
    notice_signal: str,
    tag: str,
) -> None:
    """Run this node's share of a job on several hosts."""


def main(args: list[str]) -> int:
    """Run the command line `args` and return the exit code."""
    return exit_code_of(lambda: command.main(args, prog_name="node_main", standalone_mode=False))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
