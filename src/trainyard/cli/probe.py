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
@click.option("--ranks", type=click.IntRange(min=1), help="Number of ranks; default: one per device.")
@click.option("--dtype", default="float32", show_default=True, help="Data type of matmuls and attention.")
@click.option(
    "--machine", metavar="FILE", default="", type=InputFile(), help="With RUNS: the machine whose constants are fitted."
)
@click.option("--out", type=click.Path(path_type=Path), help="Write a machine file for `plan --machine`.")
@click.option("--json", "as_json", is_flag=True, help="Print the machine as JSON.")
def command(
    runs: tuple[str, ...], ranks: int | None, dtype: str, machine: str, out: Path | None, as_json: bool
) -> None:
    """Benchmark this machine for the planner: matmuls, attention, memory, launches and collectives.

    With RUNS (stored runs by id, tag or folder) nothing is measured: the constants of --machine are fitted to the runs,
    account by account. With at least four runs, their scatter also sets the planner's prediction interval.
    """
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.errors import BadInput
    from trainyard.formats.atomic import write_text
    from trainyard.predict.calibrate import machine_file
    from trainyard.report.plans import probe_tables
    from trainyard.report.render.terminal import print_table

    if runs and not machine:
        raise BadInput(
            f"--machine is missing: the machine on which {', '.join(runs)} ran.",
            "Pass a machine file written by `trainyard probe`.",
        )
    if machine and not runs:
        raise BadInput(f"--machine {machine} needs RUNS to fit its constants to.", "Pass stored runs of that machine.")
    if runs:
        machine_model, tables = _calibrated(machine, [_measured(name) for name in runs])
    else:
        machine_model, tables = _probed(ranks, dtype)
    if out is not None:
        write_text(machine_file.write(machine_model, "Written by `trainyard probe`."), out)
        say(f"wrote {out}")
    if as_json:
        print_json(machine_model)
        return
    screen = console()
    for number, table in enumerate((*tables, probe_tables.constants(machine_model))):
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
        raise BadInput(f"{name} is not a run of a job with timed steps.", "Pass a stored run of a job file.")
    return MeasuredRun(name, side.job, side.mean, side.timed_ns / 1e9)
