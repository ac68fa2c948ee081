"""Prints comparisons of convergence: of loss curves, and with reference convergence points."""

from __future__ import annotations

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainyard.report.gate.convergence_table import reached_table, table
from trainyard.report.gate.gate_report import ConvergenceReport, ReferenceReport
from trainyard.report.gate.gate_terminal import print_some
from trainyard.report.render.fitted_table import plain
from trainyard.report.render.terminal import print_table

_STYLES = {"same": "green", "differs": "red", "faster": "red", "slower": "red", "cannot tell": "yellow"}
_MOST_SEEDS = 10
"""Seeds in the default output."""


def print_convergence(convergence: ConvergenceReport, console: Console, full: bool = False) -> None:
    """Prints the verdict on the loss and the table of seeds; without `full`, only the first seeds and notes."""
    console.print(Text(plain(convergence.headline), style=f"bold {_STYLES[convergence.verdict]}"))
    console.print()
    seeds = table(convergence)
    *rows, all_seeds = seeds.rows
    shown = rows if full or len(rows) <= _MOST_SEEDS + 1 else rows[:_MOST_SEEDS]
    print_table(replace(seeds, rows=(*shown, all_seeds), notes=()), console)
    if len(rows) > len(shown):
        console.print(Text(f"{len(rows) - len(shown)} more seeds with --full", style="dim"))
    print_some(seeds.notes, "note", console, full)


def print_reference(comparison: ReferenceReport, console: Console) -> None:
    """Prints the verdict and the figures of the comparison, one per row: there is only one comparison."""
    console.print(Text(plain(comparison.headline), style=f"bold {_STYLES[comparison.verdict]}"))
    console.print()
    figures = reached_table(comparison)
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    drawn.add_column(no_wrap=True)
    drawn.add_column(justify="right", overflow="fold")
    for column, cell in zip(figures.columns, figures.rows[0], strict=True):
        number = isinstance(cell, int | float) and column.digits is not None
        drawn.add_row(column.title, Text(f"{cell:,.{column.digits}f}" if number else plain(str(cell or "–"))))
    console.print(drawn)
    for note in figures.notes:
        console.print(Text(f"note: {plain(note)}", style="dim"))
