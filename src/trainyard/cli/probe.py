"""`trainyard probe`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard.cli.support.pipes import InputFile

if TYPE_CHECKING:
    from trainyard.machine import Machine
    from trainyard.predict.calibrate.fit_constants import MeasuredRun
    from trainyard.report.view.view import Table


@click.command()
@click.argument("runs", nargs=-1, type=InputFile())
@click.option("--ranks", type=click.IntRange(min=1), help="How many work at once; default: one a device.")
@click.option("--dtype", default="float32", show_default=True, help="What matrix products are computed in.")
@click.option(
    "--machine", metavar="FILE", default="", type=InputFile(), help="With RUNS: whose constants they correct."
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the machine's file, for `plan --machine`.")
@click.option("--json", "as_json", is_flag=True, help="Print the machine as JSON.")
def command(
    runs: tuple[str, ...], ranks: int | None, dtype: str, machine: str, out: Path | None, as_json: bool
) -> None:
    """How fast this machine is, as a planner needs to know: products, attention, memory, launches, collectives.

    With RUNS (stored runs by id, name or folder) nothing is measured: the constants of --machine are fitted to them,
    account by account, and from four runs on their spread becomes the planner's.
    """
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.errors import BadInput
    from trainyard.formats.atomic import write_text
    from trainyard.predict.calibrate import machine_file
    from trainyard.report.plans import probe_tables
    from trainyard.report.render.terminal import print_table

    if runs and not machine:
        raise BadInput(
            f"--machine is missing: the machine that {', '.join(runs)} ran on.",
            "Name a file that `trainyard probe` wrote.",
        )
    if machine and not runs:
        raise BadInput(
            f"--machine {machine} is given without RUNS to fit its constants to.", "Name runs of that machine."
        )
    if runs:
        made, tables = _calibrated(machine, [_measured(name) for name in runs])
    else:
        made, tables = _probed(ranks, dtype)
    if out is not None:
        write_text(machine_file.write(made, "Written by `trainyard probe`."), out)
        say(f"Written to {out}.")
    if as_json:
        print_json(made)
        return
    screen = console()
    for number, table in enumerate((*tables, probe_tables.constants(made))):
        if number:
            screen.print()
        print_table(table, screen)


def _probed(ranks: int | None, dtype: str) -> tuple[Machine, list[Table]]:
    from trainyard.predict.calibrate import probed_machine
    from trainyard.report.plans import probe_tables
    from trainyard.run.probe import devices as measured

    seen, count = measured.devices(ranks)
    timed = measured.probe(seen.vendor, count, dtype)
    return probed_machine.machine("here", seen, count, dtype, timed), [probe_tables.timed(timed, count)]


def _calibrated(name: str, runs: list[MeasuredRun]) -> tuple[Machine, list[Table]]:
    from trainyard import machine
    from trainyard.predict.calibrate import fit_constants
    from trainyard.predict.inputs import constant_sets
    from trainyard.report.plans import probe_tables

    before = machine.load(name)
    assumed = constant_sets.choose(before, "fsdp").values()
    after = fit_constants.calibrated(before, assumed, runs)
    return after, [probe_tables.fit(runs, before, assumed, after)]


def _measured(name: str) -> MeasuredRun:
    from trainyard.api.named_inputs import find
    from trainyard.cli.support.output import say
    from trainyard.errors import BadInput
    from trainyard.predict.calibrate.fit_constants import MeasuredRun

    side = find(name, say=say).side()
    if side.run is None or side.job is None or not side.timed_ns:
        raise BadInput(f"{name} is no run of a job with timed steps.")
    return MeasuredRun(name, side.job, side.mean, side.timed_ns / 1e9)
