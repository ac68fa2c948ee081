"""Prints the operations that explain the change of a step."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from trainyard.compare.operations.largest_changes import OperationChange, OperationChanges
from trainyard.report.render.fitted_table import plain
from trainyard.report.view.operation_changes import crop, show_calls, show_match, show_path, show_places

_MOST_OPERATIONS = 3
"""Operations in the default output."""
_MIN_NAME = 24
_INDENT = 12
"""Width of the column of changes in characters."""


def print_operations(changes: OperationChanges, console: Console, full: bool) -> None:
    """Prints the operations with the largest changes: the change in ms, the path, and the match on a second line."""
    shown = changes.largest if full else changes.largest[:_MOST_OPERATIONS]
    if not shown:
        return
    console.print(Text("\nby operation, ms per step", style="bold"))
    for change in shown:
        path = _shorten(change.path, console.width - _INDENT)
        lines = f"{change.ns / 1e6:>+10,.3f}  {plain(path)}", f"{'':{_INDENT}}{plain(_describe(change))}"
        for line, style in zip(lines, ("", "dim")):
            console.print(Text(crop(line, console.width), style=style))
    hidden = changes.largest[len(shown) :]
    rest_ns = changes.rest_ns + sum(change.ns for change in hidden)
    console.print(Text(f"{rest_ns / 1e6:>+10,.3f}  other operations", style="dim"))


def count_hidden(changes: OperationChanges | None) -> int:
    """The number of operations that only the full output has."""
    return len(changes.largest[_MOST_OPERATIONS:]) if changes else 0


def _describe(change: OperationChange) -> str:
    """`1.200 → 0.300, calls 96 → 24, 12 places, fused 4 → 1`."""
    calls = show_calls(change)
    times = f"{change.before_ns / 1e6:,.3f} → {change.after_ns / 1e6:,.3f}"
    return ", ".join(filter(None, (times, calls and f"calls {calls}", show_places(change), show_match(change))))


def _shorten(path: tuple[str, ...], width: int) -> str:
    """The path in at most `width` characters if possible: labels after the first are replaced by three dots."""
    text = show_path(path)
    for first in range(2, len(path)):
        if len(text) <= max(width, _MIN_NAME):
            break
        text = f"{path[0]} / ... / {show_path(path[first:])}"
    return text
