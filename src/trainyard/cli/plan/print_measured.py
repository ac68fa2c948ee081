"""Print the measured candidates of a plan as one screen, in full, or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cli.support.output import console, print_json, say

if TYPE_CHECKING:
    from trainyard.report.plans.measured_plans import MeasuredPlans

_ROWS = 4
"""Rows of each table on one screen."""


def print_measured(result: MeasuredPlans, machine: str, out: Path | None, *, full: bool, as_json: bool) -> None:
    """Writes the fitted machine to `out`, if there is one, and prints the result. `machine`: the machine's argument."""
    from trainyard.formats.atomic import write_text
    from trainyard.report.plans import measured_tables
    from trainyard.report.render.terminal import next_steps, print_table

    if out is not None and result.fit is not None:
        write_text(result.fit.toml, out)
        say(f"wrote {out}")
    if as_json:
        print_json(result)
        return
    screen = console(full=full)
    for warning in result.warnings:
        screen.print(warning, style="bold yellow", markup=False)
    screen.print(f"{result.step}.", markup=False)
    screen.print(result.headline, markup=False)
    for table in measured_tables.tables(result):
        screen.print()
        print_table(table, screen, None if full else _ROWS)
    for sentence in measured_tables.failures(result):
        screen.print(f"\n{sentence}", markup=False)
    _print_commands(result)
    written = str(out) if out is not None and result.fit is not None else ""
    steps = next_steps(measured_tables.suggest_commands(result, machine, written), screen.width)
    screen.print(*steps, sep="\n")


def _print_commands(result: MeasuredPlans) -> None:
    """Prints the written files and the commands of each candidate, unwrapped so that they can be copied."""
    from trainyard.cli.support.output import echo

    if result.mode != "files":
        return
    for candidate in result.candidates:
        echo(f"\n{candidate.name}: {candidate.layout}")
        for command in candidate.commands:
            echo(f"  {command}")
    echo()
    for sentence in result.feedback:
        echo(sentence)
