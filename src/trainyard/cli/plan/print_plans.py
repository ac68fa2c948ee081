"""Print plans as one screen, in full, or as JSON."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cli.support.output import console, print_json, say
from trainyard.errors import BadInput
from trainyard.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from trainyard.report.plans.plans_file import Plans
    from trainyard.report.view.view import Table


def check_out(out: Path | None, *inputs: str | None) -> None:
    """Raises `BadInput` if the file to write is one of the command's `inputs`, which it would replace."""
    if out and out.exists() and any(name and os.path.exists(name) and out.samefile(name) for name in inputs):
        raise BadInput(f"--out {out} is a file that the command reads, and would be replaced.", "Pass another file.")


def print_plans(plans: Plans, out: Path | None, full: bool, as_json: bool, machine: str) -> None:
    """Print the notes to stderr, so that JSON on stdout stays valid, then `plans` to stdout.

    `plans` is printed as JSON if `as_json`, as all its tables if `full`, else as a summary of one screen. `out`: a file
    to which the launch configuration of the recommended layout is written before that, with a file of notes if it
    cannot carry all settings. `machine`: the argument of
    `--machine`, which a written job file contains. Raises `BadInput` if no layout fits.
    """
    from trainyard.formats.atomic import write_text
    from trainyard.report.plans.input_sentences import input_sentences
    from trainyard.report.plans.launch_files import NOTES_SUFFIX, launch_file

    for sentence in input_sentences(plans):
        say(printable(sentence))
    if out is not None:
        launch = launch_file(plans, machine)
        write_text(launch.text, out)
        say(f"wrote {out}: {launch.layout}")
        if launch.notes:
            notes = out.with_name(out.name + NOTES_SUFFIX)
            write_text(launch.notes, notes)
            say(f"wrote {notes}: settings that {out.name} cannot carry.")
        for sentence in launch.outside:
            say(f"Not in {out.name}: {sentence}")
    if as_json:
        print_json(plans)
    elif full:
        _print_full(plans)
    else:
        _print_screen(plans)


def _print_screen(plans: Plans) -> None:
    """Prints one screen of the plans: headline, shortened tables, and next steps."""
    from trainyard.report.plans import plan_summary
    from trainyard.report.render.terminal import next_steps

    screen = console()
    _print_head(plans, screen)
    _print_tables(plan_summary.summary(plans), screen)
    screen.print(*next_steps(plan_summary.suggest_commands(plans), screen.width), sep="\n")


def _print_full(plans: Plans) -> None:
    """Prints the headline and all tables of the plans."""
    from trainyard.report.plans import cost_inputs, hetero_tables, pipeline_tables, plan_tables

    screen = console(full=True)
    _print_head(plans, screen)
    tables = (
        hetero_tables.layouts(plans), *plan_tables.variants(plans), *hetero_tables.part_tables(plans),
        *plan_tables.scaling(plans), *cost_inputs.cost_inputs(plans), plan_tables.ledger(plans.best.plan),
        *pipeline_tables.pipeline(plans), plan_tables.memory(plans),
        *((plan_tables.collectives(plans),) if plans.collectives else ()),
    )  # fmt: skip
    _print_tables(tables, screen)


def _print_head(plans: Plans, screen: Console) -> None:
    """Prints the model, the first layout with its step, and the token budget if there is one."""
    from trainyard.report.plans import plan_summary

    lines = (
        f"{plans.step}.", plan_summary.model_line(plans), plan_summary.headline(plans),
        *plan_summary.budget_lines(plans), plan_summary.interval_line(plans),
    )  # fmt: skip
    for line in lines:
        if line:
            screen.print(line, markup=False)


def _print_tables(tables: tuple[Table, ...], screen: Console) -> None:
    """Prints each table after an empty line."""
    from trainyard.report.render.terminal import print_table

    for table in tables:
        screen.print()
        print_table(table, screen)
