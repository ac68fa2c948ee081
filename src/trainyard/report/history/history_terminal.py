"""Prints a history, and builds its JSON. Names come from files: they are printed as text, never as markup."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainyard import units, words
from trainyard.compare.history.judge_changes import History, Judged
from trainyard.compare.history.series_changes import SeriesChange
from trainyard.compare.history.statistics.critical_values import ALPHA
from trainyard.compare.history.statistics.levels import Level
from trainyard.ledger import encode_hook
from trainyard.report.render.terminal import plain

SCHEMA = "trainyard/history/1"
_BLOCKS = "▁▂▃▄▅▆▇█"
_STYLES = {"worse": "red", "better": "green", "same": "dim", "unknown": ""}
_SPIKES = 4
"""Number of spikes in the table; there may be many, and they matter little."""


def show(value: float, unit: str, digits: int = 2) -> str:
    """A value in its unit."""
    if unit == "ns":
        return units.show_time(value, digits)
    if unit == "B":
        return units.show_size(value, digits)
    if unit == "share":
        return f"{100 * value:.{digits}f} %"
    if unit == "1/s":
        return units.show_rate(value, "/s", digits)
    return f"{value:,.6g}"


def size(change: SeriesChange) -> str:
    """`+3.1 % (+2.6 to +3.5)`; a spike has no interval. `–` if the level before was 0."""
    share = change.share
    if share is None:
        return "–"
    value, low, high = (f"{100 * part:+.1f}" for part in share)
    return f"{value} %" if change.kind == "spike" else f"{value} % ({low} to {high})"


def title(history: History) -> str:
    """The sentence that names the newest lasting change, if any."""
    series, newest = history.series, history.newest
    known = series.metric in words.METRICS
    subject = f"{series.name}: {series.about.label.lower() if known else series.metric}"
    if not known and series.metric.endswith(series.name):  # the metric of a benchmark holds its full name
        subject = series.metric
    if newest is None:
        known = sum(judged.change.lasting for judged in history.changes)
        accepted = f" but {known} accepted" if known else ""
        return f"{subject}: no change in {history.seen.points:,} points{accepted}"
    change, point = newest.change, series.points[newest.change.at]
    since = f"since {point.name}" if point.name else f"since point {change.at}"
    ago = len(series.points) - change.at
    moves = "drifts," if change.kind == "drift" else "is"
    return f"{subject} {moves} {newest.verdict} {since}, {ago} points ago: {size(change).partition(' (')[0]}"


def print_history(history: History, console: Console) -> None:
    newest = history.newest
    style = _STYLES[newest.verdict] if newest else ""
    console.print(Text(plain(title(history)), style=f"bold {style}".strip()))
    console.print()
    for line in picture(history, min(console.width - 1, 100)):
        console.print(Text(line))
    console.print()
    if history.changes:
        console.print(_table(history))
    for judged in history.changes:
        if judged is newest or (judged.change.lasting and not judged.accepted and judged.cause and judged.cause.differ):
            _print_cause(judged, history, console)
    console.print(Text(rests(history), style="dim"))
    for note in history.notes:
        console.print(Text(f"note: {plain(note)}", style="dim"))


def picture(history: History, width: int) -> list[str]:
    """The series as block characters and, below, marks at its changes. A column is the median of its points, scaled
    between the 2nd and the 98th percentile."""
    values = np.array(history.series.values)
    columns = min(width, values.size)
    edges = np.linspace(0, values.size, columns + 1).astype(int)
    middles = np.array([np.median(values[a:b]) for a, b in pairwise(edges)])
    low, high = np.percentile(values, [2, 98])
    steps = np.clip((middles - low) / ((high - low) or 1.0), 0, 1) * (len(_BLOCKS) - 1)
    marks = [" "] * columns
    for judged in history.changes:
        sign = {"step": "▲", "drift": "╱", "excursion": "^", "spike": "·"}[judged.change.kind]
        at = int(np.searchsorted(edges, judged.change.at, "right")) - 1
        if marks[at] in " ·":
            marks[at] = sign
    return ["".join(_BLOCKS[round(step)] for step in steps), "".join(marks).rstrip()]


def rests(history: History) -> str:
    """The number of points, the noise and the false alarm rate that the changes rest on."""
    seen = history.seen
    begun = f" since the reset at point {history.begin}" if history.begin else ""
    wide = f", noise {seen.inflation**0.5:.1f} times as wide as independent" if seen.inflation > 1.2 else ""
    return (
        f"{seen.points:,} points{begun}{wide}. {100 * ALPHA:.0f} % of series without a change show one; "
        "intervals are of 95 %."
    )


def _table(history: History) -> Table:
    series = history.series
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("", "at", "may be"):
        table.add_column(head, no_wrap=True)
    for head in ("before", "after", "change"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("")
    spikes = [judged for judged in history.changes if judged.change.kind == "spike"]
    for judged in history.changes:
        change = judged.change
        if judged in spikes[:-_SPIKES]:
            continue
        verdict = "accepted" if judged.accepted else judged.verdict if change.lasting else ""
        why = f"accepted: {judged.accepted.why}" if judged.accepted and judged.accepted.why else verdict
        table.add_row(
            words.CHANGES[change.kind].label,
            Text(plain(place(history, change.at))),
            "" if change.kind == "spike" else f"{change.low} to {change.high}",
            _level(change.before, series.about.unit),
            _level(change.after, series.about.unit),
            size(change),
            Text(plain(why), style="dim" if judged.accepted else _STYLES.get(verdict, "")),
        )
    if len(spikes) > _SPIKES:
        table.caption = f"and {len(spikes) - _SPIKES} spikes before"
    return table


def place(history: History, at: int) -> str:
    point = history.series.points[at]
    return " ".join(
        part for part in (str(at), point.name, point.when[:10] if point.name != point.when[:16] else "") if part
    )


def _level(level: Level, unit: str) -> str:
    return show(level.value, unit)


def _print_cause(judged: Judged, history: History, console: Console) -> None:
    for line in causes(judged, history):
        console.print(Text(f"  {plain(line)}"))


def causes(judged: Judged, history: History) -> list[str]:
    """Differences between the runs at a change, one per line; the first line names the runs on either side."""
    points, change = history.series.points, judged.change
    last, first = points[max(0, change.at - 1)], points[change.at]
    lines = []
    if last.name and first.name:
        lines.append(
            f"{words.CHANGES[change.kind].label} at {change.at}: last before {_who(last)}, first after {_who(first)}"
        )
    if judged.cause is None:
        return lines
    lines += [f"  {difference}" for difference in judged.cause.differ]
    if lines and not judged.cause.differ:
        lines.append("  the records of the two runs do not differ")
    for moved in judged.cause.moved[:1]:
        lines.append(
            f"  moved most: {moved.account} {units.show_time(moved.before_ns)} → {units.show_time(moved.after_ns)}, "
            f"{moved.ns / 1e6:+,.3f} of {judged.cause.wall_ns / 1e6:+,.3f} ms in the profiled step"
        )
    return lines


def _who(point: Any) -> str:
    commit = f"commit {point.commit[:10]}" if point.commit else ""
    run = f"run {point.run}" if point.run else ""
    return f"{run} ({commit})" if run and commit else run or commit or point.when


def as_plain(history: History) -> dict[str, Any]:
    """The document of `--json`. Indices count from the first point of the series."""
    built: dict[str, Any] = msgspec.to_builtins(history, enc_hook=encode_hook)
    built["series"]["about"] = history.series.about._asdict()
    for change, judged in zip(built["changes"], history.changes):
        for side in ("before", "after", "shift"):
            change["change"][side] = getattr(judged.change, side)._asdict()
        share = judged.change.share
        change["share"] = share._asdict() if share else None
        change["point"] = msgspec.to_builtins(history.series.points[judged.change.at])
    built["seen"].pop("changes")
    return {"schema": SCHEMA, "title": title(history), "worse": history.worse, "alpha": ALPHA, **built}
