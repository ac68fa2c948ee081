"""Pictures of block characters, for terminals of any width and without colours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

EIGHTHS = " ▁▂▃▄▅▆▇█"
"""Columns by height, in eighths of a line."""


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as columns on a scale from their minimum to their maximum, at most `width` characters. If there are
    more values, a column shows the largest of several. Equal values are of half height; a value that is not finite is
    a space."""
    finite = [value for value in values if abs(value) < float("inf")]
    if not finite or width < 1:
        return ""
    count = min(width, len(values))
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    low, high = min(finite), max(finite)
    columns: list[str] = []
    for first, last in pairwise(edges):
        shown = [value for value in values[first:last] if abs(value) < float("inf")]
        if not shown:
            columns.append(EIGHTHS[0])
        elif low == high:
            columns.append(EIGHTHS[4])
        else:
            columns.append(EIGHTHS[1 + round(7 * (max(shown) - low) / (high - low))])
    return "".join(columns)
