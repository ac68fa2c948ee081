"""`trainyard numerics record`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard.cli.numerics.recording_options import level_option, steps_option

if TYPE_CHECKING:
    from trainyard.numerics.tensor_record import Level


@click.command()
@click.argument("command_words", metavar="[JOB.toml | -- COMMAND]", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the record.")
@click.option(
    "--replicas",
    type=click.IntRange(0, 99),
    default=4,
    show_default=True,
    help="Jittered runs, which show the effect of rounding; 0: no float64 reference either.",
)
@steps_option
@click.option(
    "--every", type=click.IntRange(min=1), default=1, show_default=True, help="Record every Nth of the steps."
)
@level_option
@click.option(
    "--max-elements",
    type=click.IntRange(min=0),
    default=0,
    help="Leave out results of operations with more elements; 0: none.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the cost of each run as JSON.")
def command(
    command_words: tuple[str, ...],
    out: Path,
    replicas: int,
    steps: str,
    every: int,
    level: Level,
    max_elements: int,
    as_json: bool,
) -> None:
    """Record a summary of every tensor of some training steps, for `trainyard numerics compare`.

    COMMAND is a training script, unchanged, with torchrun or without. It is run once as it is, once with every
    operation in float64, and once for each replica, in which every result moves by up to 2 units in the last place at
    random. Use --replicas 0 for the program in question, of which the plain run is enough. The script must do the same
    in each run: fix its seeds.

    If a recording was interrupted, or needs more replicas, repeat the command with the same --out: complete runs are
    kept. Another command or other options are refused.

    A record has a few hundred bytes per tensor, whatever its size.
    """
    from trainyard import api
    from trainyard.cli.support.output import print_json, say

    report = api.record_numerics(
        command_words,
        out,
        steps=steps,
        every=every,
        level=level,
        replicas=replicas,
        most_elements=max_elements,
        say=say,
    )
    say(f"wrote {out}")
    if as_json:
        print_json(report)
