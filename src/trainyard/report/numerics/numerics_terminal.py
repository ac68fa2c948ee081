"""Prints a comparison of recorded tensors."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainyard.numerics.compare.comparison_result import Divergence
from trainyard.report.gate.gate_terminal import print_some
from trainyard.report.numerics.numerics_report import NumericsReport
from trainyard.report.numerics.numerics_tables import module_table, step_table
from trainyard.report.numerics.sentences import describe, describe_code, describe_tensor, divergence_facts
from trainyard.report.render.fitted_table import plain
from trainyard.report.render.terminal import print_table

_STYLES = {"same": "green", "different": "red", "cannot tell": "yellow"}
_MOST_STEPS = 6
"""Rows of the table of steps in the default output."""
_MOST_FURTHER = 3
"""Further divergences in the default output."""


def print_numerics(report: NumericsReport, console: Console, full: bool = False) -> None:
    """Prints the verdict, the first fault, the modules in order and the course over the steps."""
    console.print(Text(plain(report.headline), style=f"bold {_STYLES[report.verdict]}"))
    if report.first is not None:
        console.print(_facts(report.first))
    further = report.further if full else report.further[:_MOST_FURTHER]
    for divergence in further:
        line = f"also {describe_tensor(divergence.tensor)}: {describe(divergence)}"
        console.print(Text(plain(line + _at_code(divergence)), style="yellow"))
    if len(report.further) > len(further):
        console.print(Text(f"{len(report.further) - len(further)} more divergences with --full", style="dim"))
    console.print()
    print_table(module_table(report, full), console)
    if len({step.step for step in report.steps}) > 1 or full:
        console.print()
        print_table(step_table(report), console, None if full else _MOST_STEPS)
    print_some(report.explanations, "note", console, full)


def _facts(divergence: Divergence) -> Table:
    """The first divergence: a line for each fact."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    drawn.add_column(no_wrap=True, style="dim")
    drawn.add_column(overflow="fold")
    for name, value in divergence_facts(divergence):
        drawn.add_row(name, Text(plain(value)))
    return drawn


def _at_code(divergence: Divergence) -> str:
    code = describe_code(divergence.tensor)
    return f" ({code})" if code else ""
