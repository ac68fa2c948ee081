"""Prints a history. Names come from files: they are printed as text, never as markup."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from trainyard import units, words
from trainyard.compare.history.judge_changes import History, JudgedChange
from trainyard.report.gate.gate_terminal import print_some
from trainyard.report.history.history_report import HistoryReport
from trainyard.report.history.sentences import explain_change, explain_estimate, show_interval, show_share
from trainyard.report.render.blocks import EIGHTHS
from trainyard.report.render.fitted_table import Part, fitted, plain
from trainyard.report.render.terminal import next_steps
from trainyard.report.render.unit_scale import scale_of

_MARKS = {"step": "▲", "drift": "╱", "excursion": "^", "spike": "·"}
"""Kind of change -> its mark below the picture."""
_STYLES = {"worse": "red", "better": "green", "same": "dim", "unknown": ""}
_CHANGES, _SPIKES = 8, 4
"""Changes in the default output, and spikes among them: there may be many, and they matter little."""
_CAUSES = 6
"""Lines on the cause of a change in the default output."""
_POINT_NAME = 10
"""Characters of a point's name that are always shown: those of an abbreviated commit."""
_PICTURE_PERCENTILES = (2, 98)
_MAX_PICTURE = 100
"""Columns of the picture at most."""


def print_history(history: HistoryReport, console: Console, full: bool = False) -> None:
    """Prints headline, picture, changes and their causes; without `full`, causes of the newest change alone."""
    newest = history.newest
    style = _STYLES[newest.verdict] if newest else ""
    console.print(Text(plain(history.headline), style=f"bold {style}".strip()))
    console.print()
    for line in picture(history, min(console.width - 1, _MAX_PICTURE)):
        console.print(Text(line))
    console.print()
    if history.changes:
        _print_changes(history, console, full)
    for judged in history.changes:
        if judged is newest or (full and judged.change.lasting and not judged.accepted):
            lines = explain_change(judged, history)
            shown = lines if full or len(lines) <= _CAUSES + 1 else lines[:_CAUSES]
            for line in shown:
                console.print(Text(plain(line)))
            if len(lines) > len(shown):
                more = units.counted(len(lines) - len(shown), "more difference")
                console.print(Text(f"{more} with --full", style="dim"))
    console.print(Text(history.evidence, style="dim"))
    print_some(history.notes, "note", console, full)
    console.print(*next_steps(history.next_steps, console.width), sep="\n")


def picture(history: History, width: int) -> list[str]:
    """The series as a line of at most `width` block characters and, below, marks at its changes. A column is the median
    of its points, scaled between the 2nd and the 98th percentile."""
    values = np.array(history.series.values)
    columns = min(width, values.size)
    edges = np.linspace(0, values.size, columns + 1).astype(int)
    medians = np.array([np.median(values[a:b]) for a, b in pairwise(edges)])
    low, high = np.percentile(values, _PICTURE_PERCENTILES)
    # 1 to 8: indices of `EIGHTHS`, before rounding.
    heights = 1 + 7 * np.clip((medians - low) / ((high - low) or 1.0), 0, 1)
    marks = [" "] * columns
    for judged in history.changes:
        at = int(np.searchsorted(edges, judged.change.at, "right")) - 1
        if marks[at] in " ·":
            marks[at] = _MARKS[judged.change.kind]
    return ["".join(EIGHTHS[round(step)] for step in heights), "".join(marks).rstrip()]


def _print_changes(history: HistoryReport, console: Console, full: bool) -> None:
    """Prints the table of changes; without `full`, the last few, the last spikes, and always the newest."""
    shown = list(history.changes)
    if not full:
        spikes = [judged for judged in shown if judged.change.kind == "spike"]
        older = spikes[:-_SPIKES]
        shown = [judged for judged in shown if judged not in older][-_CHANGES:]
        newest = history.newest
        if newest is not None and newest not in shown:
            shown = [newest, *shown[1:]]
    console.print(_draw_changes(history, shown, console.width))
    if explanation := explain_estimate(judged.change for judged in shown):
        console.print(Text(explanation, style="dim"))
    if hidden := len(history.changes) - len(shown):
        console.print(Text(f"{units.counted(hidden, 'earlier change')} with --full", style="dim"))


def _draw_changes(history: HistoryReport, shown: list[JudgedChange], width: int) -> RenderableType:
    """The table of `shown` changes in one unit, fitted to `width` characters."""
    largest = max(abs(level) for row in shown for level in (row.change.before.value, row.change.after.value))
    scale = scale_of(largest, history.series.about.unit)
    unit = f" {scale.unit}" if scale.unit else ""
    changes = [judged.change for judged in shown]
    intervals = [Text(show_interval(change), style="dim") for change in changes]
    positions = ["" if change.low == change.high else f"{change.low} to {change.high}" for change in changes]
    return fitted(
        [
            Part("", [Text(words.CHANGES[change.kind].label) for change in changes]),
            Part("point", [Text(str(change.at)) for change in changes], right=True),
            Part("", [Text(plain(judged.point.name)) for judged in shown], name=True, min_width=_POINT_NAME),
            Part("date", [_date(judged) for judged in shown], drop_order=5),
            Part("may be", [Text(position) for position in positions], drop_order=3),
            Part(
                f"before{unit}", [Text(scale.show(change.before.value)) for change in changes], right=True, drop_order=1
            ),
            Part(
                f"after{unit}", [Text(scale.show(change.after.value)) for change in changes], right=True, drop_order=1
            ),
            Part("change", [Text(show_share(change)) for change in changes], right=True),
            Part("95 % interval", intervals, right=True, drop_order=4),
            Part("", [_judgement(judged) for judged in shown], drop_order=2, label="verdict"),
        ],
        width,
    )


def _date(judged: JudgedChange) -> Text:
    """The date of the point, unless its name is that already."""
    point = judged.point
    return Text("" if point.name == point.time[:16] else plain(point.time[:10]), style="dim")


def _judgement(judged: JudgedChange) -> Text:
    """The verdict on a change, or that it was accepted and the reason; empty for one that did not last."""
    if judged.accepted:
        reason = f"accepted: {judged.accepted.reason}" if judged.accepted.reason else "accepted"
        return Text(plain(reason), style="dim")
    verdict = judged.verdict if judged.change.lasting else ""
    return Text(verdict, style=_STYLES.get(verdict, ""))
