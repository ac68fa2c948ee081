"""A history as one self-contained page: the series, its levels, its changes and the differences between the runs.

A history is a series of values, such as the step times of a job's runs, with the changes detected in it: a step or a
drift lasts, an excursion or a spike returns to the level. `at`, `until`, `low` and `high` of a change are indices of
points.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from trainyard import __version__, units, words
from trainyard.compare.history.judge_changes import History, JudgedChange
from trainyard.compare.history.series_changes import SeriesChange
from trainyard.compare.history.statistics.levels import estimate_level
from trainyard.formats.atomic import write_text
from trainyard.report.history.sentences import (
    describe_evidence,
    explain_change,
    explain_estimate,
    headline,
    name_point,
    show_change,
    show_share,
    show_value,
)
from trainyard.report.render.html import NO_SITE, SiteFrame, document
from trainyard.report.render.unit_scale import scale_of
from trainyard.report.view.view import Column, KeyFigure, Table

_AXIS_PERCENTILES = (0.5, 99.5)
"""Percentiles of the values between which the axis always reaches."""
_AXIS_MARGIN, _AXIS_PADDING = 0.6, 0.08
"""The axis goes beyond the percentiles by at most this fraction of their range, and beyond all points by this fraction
of that margin."""
_LIMITS = (
    "Steps are tested by ranks: a step with fewer than five points on either side of it cannot be significant.",
    "Noise that wanders slowly over many points, without a trend, is reported as steps or drift.",
    "A difference between two runs need not be the cause of the change.",
)


def write(history: History, path: Path) -> None:
    """Writes the page atomically. Raises `PlaceUnwritable`."""
    write_text(page(history), path)


def page(history: History, site: SiteFrame = NO_SITE) -> str:
    """The HTML document. `site`: the navigation of a server."""
    plain = plain_view(history)
    return document(plain["title"], plain, "history", site=site)


def plain_view(history: History) -> dict[str, Any]:
    """The data that the page's script draws, as the script names it: title, points, changes, figures and table."""
    series = history.series
    values = np.array(series.values)
    changes = [judged.change for judged in history.changes]
    return {
        "title": headline(history),
        "subtitle": units.counted(len(series.points), "point")
        + (f" of the job {series.name}" if series.points[0].run else ""),
        "chips": [series.metric],
        "figures": msgspec.to_builtins(_figures(history)),
        "warnings": [],
        "wall_ns": 0,
        "metric": series.about.label,
        "scale": _scale(float(np.median(np.abs(values))), series.about.unit),
        "points": msgspec.to_builtins(series.points),
        "range": _range(history),
        "begin": history.begin,
        "levels": _levels(history),
        "changes": [_change(judged, history) for judged in history.changes],
        "tables": msgspec.to_builtins([_table(history)] if history.changes else []),
        "notes": [*filter(None, [describe_evidence(history), explain_estimate(changes)]), *history.notes],
        "limits": _LIMITS,
        "generated": f"trainyard {__version__}",
    }


def _scale(typical_value: float, unit: str) -> dict[str, Any]:
    """Unit, size of the unit and decimals with which the page shows values like `typical_value`."""
    scale = scale_of(typical_value, unit)
    in_unit = typical_value / scale.divisor
    return {"unit": scale.unit, "size": scale.divisor, "digits": 1 if in_unit >= 100 else 2 if in_unit >= 10 else 3}


def _range(history: History) -> tuple[float, float]:
    """Limits (low, high) of the vertical axis: the values without the lowest and highest 0.5 %, with a margin, but not
    beyond the range of all values. Spikes beyond them are drawn at the edge, so that one does not flatten the rest."""
    values = np.array(history.series.values)
    low, high = np.percentile(values, _AXIS_PERCENTILES)
    # A constant series has no range: 1 % of its value then, or 1.
    margin = _AXIS_MARGIN * (high - low) or abs(float(values[0])) * 0.01 or 1.0
    padding = _AXIS_PADDING * margin
    return max(float(values.min()), low - margin) - padding, min(float(values.max()), high + margin) + padding


def _levels(history: History) -> list[dict[str, float]]:
    """The level between lasting changes as the page reads it: `start`, `stop` (indices of points), the level at both
    (`from`, `to`; a drift is a line), and its 95 % interval (`least`, `most`)."""
    values = np.array(history.series.values)
    edges = sorted(
        {history.begin, len(values), *(p for change in _lasting(history) for p in (change.at, change.until))}
    )
    drifts = [change for change in _lasting(history) if change.kind == "drift"]
    levels: list[dict[str, float]] = []
    for start, stop in pairwise(edges):
        drift = next((change for change in drifts if change.at <= start and stop <= change.until), None)
        level = estimate_level(values[start:stop], history.inflation)
        if drift is None:
            levels.append({"start": start, "stop": stop, "from": level.value, "to": level.value, "least": level.low,
                          "most": level.high})  # fmt: skip
        else:
            # (slope, intercept) of a straight line through the points; constant for too few of them.
            line = np.polyfit(np.arange(start, stop), values[start:stop], 1) if stop - start > 2 else (0.0, level.value)
            ends = [float(np.polyval(line, at)) for at in (start, stop)]
            levels.append({"start": start, "stop": stop, "from": ends[0], "to": ends[1], "least": 0.0, "most": 0.0})
    return levels


def _lasting(history: History) -> list[SeriesChange]:
    """The changes that last: steps and drifts."""
    return [judged.change for judged in history.changes if judged.change.lasting]


def _change(judged: JudgedChange, history: History) -> dict[str, Any]:
    """A change as the page's script reads it. `look`: its style; `at` to `until`: points that it covers; `low` to
    `high`: points at which it may have begun; `summary`, `short`, `range`, `lines`: texts."""
    change, label = judged.change, words.CHANGES[judged.change.kind].label
    look = "accepted" if judged.accepted else judged.verdict if change.lasting else "gone"
    sentence = f"{label} at {name_point(history, change.at)}: {show_change(change)}"
    lines = explain_change(judged, history) if change.lasting else []
    if judged.accepted and judged.accepted.reason:
        lines.insert(0, f"accepted: {judged.accepted.reason}")
    return {
        "kind": change.kind,
        "look": look,
        "at": change.at,
        "until": change.until,
        "low": change.low,
        "high": change.high,
        "summary": sentence,
        "short": show_share(change) if change.lasting else "",
        "range": f"may be {change.low} to {change.high}" if change.kind == "step" else "",
        "lines": lines,
    }


def _table(history: History) -> Table:
    """The table of all changes, newest first, in the unit of the series."""
    unit = history.series.about.unit
    return Table(
        title="Changes",
        notes=("Newest first. Excursions and spikes raise no alert.",),
        columns=(
            Column(title="kind"), Column(title="at"), Column(title="may be"), Column(title="before"),
            Column(title="after"),
            Column(title="change"), Column(title="verdict"), Column(title="reason", prose=True),
        ),
        rows=tuple(
            (
                words.CHANGES[judged.change.kind].label, name_point(history, judged.change.at),
                f"{judged.change.low} to {judged.change.high}" if judged.change.lasting else "",
                show_value(judged.change.before.value, unit), show_value(judged.change.after.value, unit),
                show_change(judged.change),
                "accepted" if judged.accepted else judged.verdict if judged.change.lasting else "",
                judged.accepted.reason if judged.accepted else "",
            )
            for judged in reversed(history.changes)
        ),
    )  # fmt: skip


def _figures(history: History) -> list[KeyFigure]:
    """Key figures: the level since the last lasting change with its growth over the first level, number of changes,
    number of points."""
    series, unit = history.series, history.series.about.unit
    values, lasting = np.array(series.values), _lasting(history)
    latest_start = max([history.begin, *(change.until for change in lasting if change.until < len(values) - 2)])
    latest_level = estimate_level(values[latest_start:], history.inflation)
    value, _, name = show_value(latest_level.value, unit).rpartition(" ") if unit else ("", "", "")
    first_level = estimate_level(
        values[history.begin : min([len(values), *(change.at for change in lasting if change.at > 2)])]
    )
    growth = (latest_level.value / first_level.value - 1) if first_level.value else 0.0
    better = (growth < 0) == (series.about.better == "lower") if lasting else None
    return [
        KeyFigure(label="now", value=value or show_value(latest_level.value, unit), unit=name,
                  description="The median since the last change.",
                  change=f"{100 * growth:+.1f} % since the first" if lasting else "", better=better),
        KeyFigure(label="changes", value=str(len(lasting)), description="Steps and drifts."),
        KeyFigure(label="points", value=units.show_count(len(values))),
    ]  # fmt: skip
