"""`python -m trainyard.cli.launch.node_main`: one node's process of a job on several hosts. Launchers run it on each.

Node 0 is the head: it runs the job, with the supervisor, and stores the run. The others run an agent that connects to
the supervisor. All of them need the job's token in the environment variable `TRAINYARD_JOB_TOKEN`, a random text that
the launcher draws for each job.

Exit codes: 0: the job is complete; 75: it saved its state and left on request, so that it can be started again with the
same job id, which resumes it; 2, 4 and 70: as `trainyard` has them. The head also writes its exit code into
FOLDER/exit-code.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from trainyard.cli.main import exit_code_of
from trainyard.cli.support.output import say, say_error
from trainyard.errors import BadInput, Preempted
from trainyard.launch.launch_spec import EXIT_CODE, LEFT, TOKEN
from trainyard.launch.supervisor.signed_store import take_token

if TYPE_CHECKING:
    from trainyard.run.nodes.hosts import Hosts


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
    from trainyard.run.nodes.hosts import Hosts, parse_address

    host, port = parse_address(head)
    if node >= nodes:
        raise BadInput(f"--node {node}, but --nodes {nodes} has nodes 0 to {nodes - 1}.")
    _leave_on(notice_signal)
    hosts = Hosts(
        job_id=job_id,
        nodes=nodes,
        host=host,
        port=port,
        token=take_token() if node else os.environ.get(TOKEN, ""),  # the head's supervisor takes it
        shared=shared.absolute() if shared is not None else None,
        gather_s=gather_s,
    )
    if not hosts.token:
        raise BadInput(
            f"{TOKEN} is not set: without it anyone who reaches {head} could start processes on all nodes.",
            "Set it to the same random text on all nodes; launchers do so.",
        )
    if node:
        from trainyard.api.run_jobs import reduce_rank_trace
        from trainyard.run.nodes import member

        raise click.exceptions.Exit(member.run(hosts, node, folder.absolute(), say, reduce_rank_trace))
    _run_head(hosts, job or str(folder / "job.toml"), tag)


def _run_head(hosts: Hosts, job: str, tag: str) -> None:
    """Run the job on the head, and print the stored run. Exits with `LEFT` if the job left on request."""
    from dataclasses import replace

    from trainyard import api
    from trainyard.cli.run.print_run import show_run
    from trainyard.cli.run.run_options import session_of

    try:
        with session_of(tag, None, False) as session:
            result = api.run(job, session=replace(session, hosts=hosts))
    except Preempted as error:
        say_error(f"error [{error.code}]: {error.message}", error.next_step)
        raise click.exceptions.Exit(LEFT) from error
    show_run(result, False, False)


def _leave_on(notice_signal: str) -> None:
    """Treat the signal of this name as SIGTERM, and leave on SIGTERM until the job has begun. Raises `BadInput` for an
    unknown signal."""

    def leave(_sign: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(LEFT)

    def forward(_sign: int, _frame: FrameType | None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    name = notice_signal.upper() if notice_signal.upper().startswith("SIG") else f"SIG{notice_signal.upper()}"
    notice = getattr(signal, name, None)
    if not isinstance(notice, signal.Signals) or notice in (signal.SIGKILL, signal.SIGSTOP):
        raise BadInput(f"{notice_signal!r} is not a signal that a process can handle.", "For example SIGUSR1.")
    signal.signal(signal.SIGTERM, leave)
    if notice != signal.SIGTERM:
        signal.signal(notice, forward)


def main(args: list[str]) -> int:
    """Run the command line `args` and return the exit code, which the head also writes into its folder."""
    heads: list[Path] = []
    try:
        code = exit_code_of(lambda: _invoke(args, heads))
    except SystemExit:  # SIGTERM before the job began
        code = LEFT
    for folder in heads:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / EXIT_CODE).write_text(f"{code}\n")
    return code


def _invoke(args: list[str], heads: list[Path]) -> None:
    """Parse the command line `args` and run the node; append its folder to `heads` if it is the head."""
    with command.make_context("node_main", args) as context:
        if not context.params["node"]:
            heads.append(context.params["folder"])
        command.invoke(context)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
