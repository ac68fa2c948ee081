"""Print plans as one screen, in full, or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cli.support.output import console, print_json, say

if TYPE_CHECKING:
    from rich.console import Console

    from trainyard.report.plans.plans_file import Plans
    from trainyard.report.view.view import Table

_MOST_CHARACTERS = 500
"""Length of the list of ignored settings in a message."""


def print_plans(plans: Plans, out: Path | None, full: bool, as_json: bool) -> None:
    """Print the notes to stderr, so that JSON on stdout stays valid, then `plans` to stdout.

    `plans` is printed as JSON if `as_json`, as all its tables if `full`, else as a summary of one screen. `out`: a file
    to which the launch configuration of the recommended layout is written before that; not the configuration that
    the user gave to be checked. Raises `BadInput` if no layout fits.
    """
    from trainyard.formats.atomic import write_text
    from trainyard.report.plans.launch_files import launch_file

    if plans.ignored_settings:
        listed = ", ".join(plans.ignored_settings)
        cut = "..." if len(listed) > _MOST_CHARACTERS else ""
        say(f"Ignored settings, assumed to cost nothing: {listed[:_MOST_CHARACTERS]}{cut}.")
    for note in (*(f"Evaluated differently: {key}." for key in plans.differing_settings), *plans.notes):
        say(note)
    if out is not None:
        launch = launch_file(plans)
        write_text(launch.text, out)
        say(f"wrote {out}: {launch.layout}")
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
    screen.print(f"{plans.step}.", markup=False)
    screen.print(plan_summary.headline(plans), markup=False)
    _print_tables(plan_summary.summary(plans), screen)
    screen.print(*next_steps(plan_summary.suggest_commands(plans), screen.width), sep="\n")


def _print_full(plans: Plans) -> None:
    """Prints the headline and all tables of the plans."""
    from trainyard.report.plans import hetero_tables, plan_summary, plan_tables

    screen = console(full=True)
    screen.print(f"{plans.step}.", markup=False)
    screen.print(plan_summary.headline(plans), markup=False)
    tables = (
        hetero_tables.layouts(plans), *plan_tables.variants(plans), *hetero_tables.part_tables(plans),
        *plan_tables.scaling(plans), plan_tables.ledger(plans.best.plan), plan_tables.memory(plans),
        *((plan_tables.collectives(plans),) if plans.collectives else ()),
    )  # fmt: skip
    _print_tables(tables, screen)


def _print_tables(tables: tuple[Table, ...], screen: Console) -> None:
    """Prints each table after an empty line."""
    from trainyard.report.render.terminal import print_table

    for table in tables:
        screen.print()
        print_table(table, screen)
