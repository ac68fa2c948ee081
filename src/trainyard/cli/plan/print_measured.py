"""Print the measured candidates of a plan as one screen, in full, or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cli.support.output import console, print_json, say
from trainyard.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from trainyard.report.plans.measured_plans import MeasuredPlans

_ROWS = 4
"""Candidates in each table on one screen."""


def print_measured(result: MeasuredPlans, machine: str, out: Path | None, *, full: bool, as_json: bool) -> None:
    """Writes the fitted machine to `out`, if there is one, and prints the result. `machine`: the machine's argument."""
    from trainyard.formats.atomic import write_text
    from trainyard.report.plans import measured_tables, probe_tables
    from trainyard.report.render.terminal import next_steps, print_table

    if out is not None and result.fit is not None:
        write_text(result.fit.toml, out)
        say(f"wrote {out}")
    for note in result.notes:
        say(printable(note))
    for candidate in result.candidates:
        for file in candidate.files:
            say(f"wrote {file}")
    if as_json:
        print_json(result)
        return
    screen = console(full=full)
    for warning in result.warnings:
        screen.print(warning, style="bold yellow", markup=False)
    screen.print(f"{result.step}.", markup=False)
    screen.print(result.headline, markup=False)
    constants = [probe_tables.constants(result.fit.machine)] if full and result.fit else []
    for table in (*measured_tables.tables(result), *constants):
        screen.print()
        print_table(table, screen, None if full else _ROWS)
    for sentence in measured_tables.failures(result):
        screen.print(f"\n{sentence}", markup=False)
    if result.mode == "files":
        _print_commands(result, screen, full)
    written = str(out) if out is not None and result.fit is not None else ""
    if steps := next_steps(measured_tables.suggest_commands(result, machine, written), screen.width):
        screen.print(*steps, sep="\n")


def _print_commands(result: MeasuredPlans, screen: Console, full: bool) -> None:
    """Prints the commands of the candidates, of all if `full`, then those that follow."""
    from trainyard.report.render.terminal import continued_command

    shown = result.candidates if full else result.candidates[:_ROWS]
    for candidate in shown:
        screen.print(f"\n{candidate.name}:", markup=False)
        for command in candidate.commands:
            screen.print(*continued_command(command, screen.width), sep="\n", markup=False, overflow="fold")
    if len(shown) < len(result.candidates):
        screen.print(f"\n{len(result.candidates) - len(shown)} more: --full")
    screen.print()
    for sentence in result.feedback:
        screen.print(sentence, markup=False)
    for command in result.feedback_commands:
        screen.print(*continued_command(command, screen.width), sep="\n", markup=False, overflow="fold")
