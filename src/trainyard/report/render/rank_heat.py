"""The heat map of a terminal: how much longer or shorter each account takes on each rank than on the median rank.

Cells are block characters, so that the map can be read without colours. Imports Rich.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.text import Text

from trainyard import units
from trainyard.report.view.view import Heat

LONGER, SHORTER = "░▒█", "·-="
"""Cells by size of the deviation, the smallest first."""
_LEVELS = (0.15, 0.4, 0.7)
"""Fractions of the largest deviation from which these are drawn."""
_LEAST = 0.01
"""Fraction of the step below which the largest deviation is not drawn in full."""
_LONGER_STYLE, _SHORTER_STYLE = "red", "blue"


class RankHeat(NamedTuple):
    """`cells`: account -> its cells, one for each rank or for each of several ranks in a row. `title`: the ranks;
    `legend`: a line that explains the cells."""

    title: str
    cells: dict[str, Text]
    legend: str


def rank_heat(heat: Heat, wall_ns: int, width: int) -> RankHeat:
    """Draws a heat map of at most `width` columns. If there are more ranks, a column shows the rank that deviates most
    of several. `wall_ns`: of the mean step."""
    count = min(width, len(heat.ranks))
    edges = [round(index * len(heat.ranks) / count) for index in range(count + 1)]
    columns = [range(first, last) for first, last in pairwise(edges)]
    rows = [[max((row[rank] for rank in ranks), key=abs) for ranks in columns] for row in heat.deviations]
    most_ns = max((abs(ns) for row in rows for ns in row), default=0)
    limit_ns = max(most_ns, _LEAST * wall_ns, 1)
    cells = {account: _row(row, limit_ns) for account, row in zip(heat.accounts, rows)}
    ranks = units.show_ranks(heat.ranks)
    folded = f", each column the most deviating of {len(columns[0])}" if len(columns) < len(heat.ranks) else ""
    legend = f"{LONGER} longer, {SHORTER} shorter than on the median rank, by up to {units.show_time(most_ns)}{folded}"
    return RankHeat(title=ranks, cells=cells, legend=legend)


def _row(deviations_ns: Sequence[int], limit_ns: float) -> Text:
    """The cells of one account."""
    text = Text()
    for ns in deviations_ns:
        level = sum(abs(ns) >= part * limit_ns for part in _LEVELS)
        if not level:
            text.append(" ")
        elif ns > 0:
            text.append(LONGER[level - 1], style=_LONGER_STYLE)
        else:
            text.append(SHORTER[level - 1], style=_SHORTER_STYLE)
    return text
