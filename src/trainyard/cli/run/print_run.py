"""Print the result of a run: its figures and its ledger, or its recovery from faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from trainyard.cli.support.output import console, echo, print_json
from trainyard.report.render.summary import print_analysis
from trainyard.report.render.terminal import NextStep, figures_line, next_steps, print_table

if TYPE_CHECKING:
    from trainyard.report.view.run_result import RunResult


def show_run(result: RunResult, as_json: bool, full: bool) -> None:
    """Print the run's ledger; as one screen unless `full`."""
    if as_json:
        print_json(result)
        return
    echo(_title(result, full))
    print_analysis(result.analysis, console(full=full), full, suggest_page(result), full_command(result))


def suggest_page(result: RunResult) -> tuple[NextStep, ...]:
    """The command that writes the page of a run."""
    return (NextStep(f"trainyard report {result.id}", "timeline and ranks as an HTML page"),)


def full_command(result: RunResult) -> str:
    """The command that prints everything known of a run."""
    return f"trainyard runs show {result.id} --full"


def _title(result: RunResult, full: bool) -> str:
    """The run's id; with `full`, its folder too, whose path may be longer than a line."""
    return f"run {result.id}  {result.folder}\n" if full else f"run {result.id}\n"


def show_chaos(result: RunResult, as_json: bool, full: bool) -> None:
    """Print the score of a run with injected faults; with `full`, its ledger too."""
    from trainyard.report.render.chaos_table import headline, table

    if as_json or result.chaos is None:
        show_run(result, as_json, full)
        return
    screen = console(full=full)
    echo(_title(result, full))
    screen.print(headline(result.chaos), style="bold", markup=False)
    screen.print(figures_line(result.figures))
    screen.print()
    print_table(table(result.chaos, full), screen)
    if full:
        screen.print()
        print_analysis(result.analysis, screen, full)
    else:
        steps = (NextStep(f"trainyard runs show {result.id} --full", "ledger, incidents and goodput"),)
        screen.print(Group(*next_steps(steps)))
