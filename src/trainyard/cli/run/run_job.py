"""`trainyard run JOB.toml` and `trainyard run -- COMMAND`: train, time, profile and record."""

from __future__ import annotations

from pathlib import Path
from shutil import which

import click

from trainyard.cli.run.run_options import COLLECT, FULL, JSON, PORT, QUIET, TAG


@click.command()
@click.argument("target", metavar="JOB.toml | -- COMMAND...", nargs=-1, required=True)
@TAG
@PORT
@click.option(
    "--profile", type=click.IntRange(min=0), default=3, show_default=True, help="Number of steps of COMMAND to profile."
)
@click.option(
    "--stacks", is_flag=True, help="Sample Python stacks in the profiled steps: findings name files and lines."
)
@click.option(
    "--shapes",
    is_flag=True,
    help="Record shapes on a CPU too, for FLOPs and bytes of ops: profiled steps get several times as long.",
)
@click.option(
    "--memory",
    is_flag=True,
    help="Record allocations in the profiled steps: memory over time, and what holds the peak.",
)
@COLLECT
@JSON
@FULL
@QUIET
def command(
    target: tuple[str, ...],
    tag: str,
    port: int | None,
    profile: int,
    stacks: bool,
    shapes: bool,
    memory: bool,
    collect: str,
    as_json: bool,
    full: bool,
    quiet: bool,
) -> None:
    """Run the job in JOB.toml on this machine, and show where the time of a step goes.

    The step time is measured without the profiler; a few more steps with the profiler give the ledger. Runs are stored
    under $TRAINYARD_STORE, by default ~/.local/share/trainyard.

    To run a training script of your own, unchanged: `trainyard run -- python my_train.py --lr 3e-4`, or
    `-- torchrun --nproc-per-node 2 my_train.py`. A step ends when the optimizer steps, or at the end of
    `with trainyard.step():` if the script uses it.

    On several nodes, start it on each of them: the node of rank 0 joins the parts of all nodes into one run.
    """
    from trainyard import api
    from trainyard.cli.run.print_run import show_run
    from trainyard.cli.run.run_options import script_session_of, session_of
    from trainyard.cli.support.pipes import copy_pipe

    first_word = target[0] if target else ""
    # --profile applies to commands only: a job file sets its own window. --port applies to jobs only: a command starts
    # its own ranks.
    if len(target) > 1 or _is_command(first_word):
        result = api.run_script(
            target,
            profile=profile,
            stacks=stacks,
            shapes=shapes,
            memory=memory,
            session=script_session_of(tag, quiet, collect),
        )
    else:
        with session_of(tag, port, quiet) as session:
            result = api.run(copy_pipe(first_word), stacks=stacks, shapes=shapes, memory=memory, session=session)
    show_run(result, as_json, full)


def _is_command(word: str) -> bool:
    """Whether a single word is a command. A job file may have any name; a missing file is one if it ends in .toml."""
    return not word.endswith(".toml") and (which(word) is not None or not Path(word).exists())
