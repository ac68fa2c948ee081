"""Prints a reproducer of a numerical difference."""

from __future__ import annotations

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from trainyard.numerics.reproduce.reproduce_difference import Reproducer
from trainyard.report.numerics.sentences import describe_tensor, show
from trainyard.report.render.fitted_table import plain

_MOST_LINES, _SHOWN_LINES = 90, 60
"""Most lines of a script that is printed whole, and lines that are printed of a longer one."""


def reproducer_headline(result: Reproducer) -> str:
    """The result in one sentence."""
    where = describe_tensor(result.tensor) + "".join(f", after {cause.description}" for cause in result.causes)
    if result.failure:
        return f"{result.script} failed: {result.failure.strip().splitlines()[-1]}"
    errors = (
        f"error of A's operations {show(result.error_a)}, of B's {show(result.error_b)}, limit {show(result.limit)}"
    )
    if result.dtype_a != result.dtype_b:
        errors += f"; {result.dtype_a} and {result.dtype_b}"
    if result.shows_fault:
        inputs = "random inputs" if result.inputs == "random" else "the inputs of the training"
        inputs += f" on {result.ranks} ranks" if result.ranks > 1 else ""
        return f"{result.script} shows the fault of {where} with {inputs}: {errors}."
    return (
        f"{result.script} does not show the fault of {where}: {errors}. The operations compute the right result from "
        "these inputs: something outside of them changes the tensor, such as a race, other code or the hardware."
    )


def print_reproducer(result: Reproducer, console: Console) -> None:
    """Prints the result and the script."""
    style = "green" if result.shows_fault else "yellow"
    console.print(Text(plain(reproducer_headline(result)), style=f"bold {style}"))
    for name in result.files:
        console.print(Text(plain(f"reads {name}, next to it"), style="dim"))
    lines = result.text.splitlines()
    most = len(lines) if len(lines) <= _MOST_LINES else _SHOWN_LINES
    shown = [line if len(line) < 200 else f"{line[:150]}..." for line in lines[:most]]
    console.print()
    console.print(Syntax("\n".join(map(plain, shown)), "python", background_color="default"), soft_wrap=True)
    if len(lines) > len(shown):
        console.print(Text(f"{len(lines) - len(shown)} more lines in the file", style="dim"))
