"""`trainyard plan measure MODEL`: measure the best layouts of a plan with short runs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from trainyard.cli.plan.number_types import Count
from trainyard.cli.plan.plan_options import BATCH, DEVICES, FIX, FRAMEWORK, MACHINE, SEQ_LEN
from trainyard.cli.support.checked_options import CheckedOptions
from trainyard.cli.support.pipes import InputFile


@click.command(cls=CheckedOptions)
@click.argument("model", required=False, type=InputFile())
@MACHINE
@DEVICES
@BATCH
@SEQ_LEN
@FIX
@FRAMEWORK
@click.option("--top", type=Count(), default=3, show_default=True, help="Number of layouts to measure.")
@click.option("--rounds", type=Count(), default=5, show_default=True,
              help="Runs of each layout. A round runs every layout once, in random order.")  # fmt: skip
@click.option("--steps", type=Count(), default=5, show_default=True, help="Timed steps of a run.")
@click.option("--fresh", is_flag=True, help="Run everything; by default matching runs of earlier commands are reused.")
@click.option("--dry-run", is_flag=True, help="Print the layouts and the estimated time, without running anything.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the machine file with the fitted constants.")
@click.option("--out-dir", default="", metavar="FOLDER",
              help="Write launch configurations to FOLDER and print commands instead of running them.")  # fmt: skip
@click.option("--full", is_flag=True, help="Print every layout and the fitted constants.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements and the fit as JSON.")
def command(
    model: str | None, machine: str, devices: int | None, batch: int | None, seq_len: int | None, fix: tuple[str, ...],
    framework: Literal["", "trainyard", "megatron", "torchtitan", "deepspeed"],
    top: int, rounds: int, steps: int, fresh: bool, dry_run: bool, out: Path | None, out_dir: str,
    full: bool, as_json: bool,
) -> None:  # fmt: skip
    """Measure the best layouts of MODEL on this machine, and fit the machine's constants to them.

    Runs the recommended layout, plain FSDP or DDP, and the fastest others with trainyard's own training code, in
    interleaved rounds; prints predicted and measured steps and memory, and whether the measurement separates the
    layouts. The runs are stored with the tags measure-MODEL-1, measure-MODEL-2, ... With --out-dir, which other
    frameworks need, nothing is run: the launch configurations are written and their commands printed.

    Exit codes: 0 at least one layout was measured or nothing was to be run, 2 bad input, 4 every layout failed.
    """
    from trainyard import api
    from trainyard.cli.plan.print_measured import print_measured
    from trainyard.cli.support.output import say
    from trainyard.errors import CommandFailed
    from trainyard.store.store import Store

    result = api.measure_plan(
        model, machine=machine, devices=devices, batch=batch, seq_len=seq_len, fix=fix, framework=framework, top=top,
        rounds=rounds, steps=steps, fresh=fresh, dry_run=dry_run, out_dir=out_dir,
        session=api.Session(Store(say=say), say=say),
    )  # fmt: skip
    print_measured(result, machine, out, full=full, as_json=as_json)
    if result.mode == "measured" and not result.measured:
        raise CommandFailed(
            f"All {len(result.candidates)} candidates failed; the first: {result.candidates[0].failure}",
            "Fix the cause, or exclude such layouts with --fix.",
        )
