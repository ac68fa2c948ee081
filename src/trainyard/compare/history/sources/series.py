"""A series: one figure per run in order of the runs' start, with run id, commit and time of each."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Literal

import msgspec

from trainyard import renamed_keys, units, words
from trainyard.errors import BadFile, BadInput, UnknownName
from trainyard.formats.regular_files import unreadable
from trainyard.words import Metric

_TEXT_FIELDS = ("run", "commit", "time")
"""Fields of a point that identify it."""
_UNNAMED = ""
"""The field of a point that is only a number."""
_MAX_LISTED = 20
"""Maximum number of columns that an error lists."""


class SeriesPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `run`, `commit`, `time` (UTC, ISO 8601): empty if unknown."""

    value: float
    run: str = ""
    commit: str = ""
    time: str = ""

    @property
    def name(self) -> str:
        """Display name: the commit, else the run, else the time."""
        return self.commit[:10] or self.run or self.time[:16]


class SeriesMetric(msgspec.Struct, frozen=True, kw_only=True):
    """The metric of a series: its label, unit, and which direction is an improvement."""

    label: str
    unit: Literal["ns", "B", "1/s", "share", ""]
    better: Literal["lower", "higher"]


def describe_metric(metric: Metric) -> SeriesMetric:
    return SeriesMetric(label=metric.label, unit=metric.unit, better=metric.better)


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """`name`: the job or file. `metric`: as in words.metric, or a name from the file."""

    name: str
    metric: str
    about: SeriesMetric
    points: tuple[SeriesPoint, ...]
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> list[float]:
        return [point.value for point in self.points]


def load(path: Path, metric: str) -> Series:
    """Load a series from JSON, a list of numbers or objects, or from CSV with a header. The figure is the field
    `metric`, or the field `value` if there is none and `metric` is one of words.metric, or the number of a point
    without fields; `run`, `commit` and `time` (in older files `when`) are kept. For metrics that are not in
    words.METRICS, lower is better. Raises `BadFile` with the position of the error, `UnknownName` if the first point
    has no such field."""
    text = _read_text(path)
    rows = _parse_json(path, text) if text.lstrip().startswith(("[", "{")) else _parse_csv(path, text)
    if not rows:
        raise BadFile(f"{path}: has 0 points, but at least 1 is needed.")
    try:
        about, keys = words.metric(metric), (metric, "value", _UNNAMED)
    except BadInput:
        about, keys = Metric(metric, "A figure of a file.", ""), (metric, _UNNAMED)
    if not any(key in rows[0] for key in keys):
        raise UnknownName(f"{path}: there is no column {metric!r}.", _list_columns(rows[0]))
    points = [_parse_point(path, number, row, keys) for number, row in enumerate(rows)]
    return Series(
        name=path.stem, metric=metric, about=describe_metric(about), points=tuple(points), notes=_note_disorder(points)
    )


def _read_text(path: Path) -> str:
    """The text of a file. Raises an error that names the file if it cannot be read or is not UTF-8."""
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise BadFile(f"{path}: cannot be read as text: {error}.", "--series takes a JSON or CSV file.") from error


def _parse_json(path: Path, text: str) -> list[dict[str, Any]]:
    """The points of a JSON list, or of a list under `points` or `values`; a bare number has the field `_UNNAMED`.
    Raises `BadFile`."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadFile(f"{path}: not JSON: {error}.") from error
    if isinstance(document, dict):
        document = document.get("points", document.get("values"))
    if not isinstance(document, list):
        raise BadFile(f"{path}: not a list of points.", "Write [1.0, 2.0, ...], or a list of objects with a `value`.")
    return [row if isinstance(row, dict) else {_UNNAMED: row} for row in document]


def _parse_csv(path: Path, text: str) -> list[dict[str, Any]]:
    """The rows of a CSV file by the names in its header; a single column of numbers needs no header. Raises `BadFile`
    for rows of another length."""
    lines = list(csv.reader(io.StringIO(text)))
    lines = [line for line in lines if line]
    if not lines:
        return []
    if len(lines[0]) == 1 and _parse_number(lines[0][0]) is not None:
        return [{_UNNAMED: line[0]} for line in lines]
    head = [name.strip() for name in lines[0]]
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(head):
            raise BadFile(f"{path}:{number}: {len(line)} fields, but the header has {len(head)}.")
    return [dict(zip(head, line)) for line in lines[1:]]


def _list_columns(row: dict[str, Any]) -> str:
    """A sentence that lists the fields of a point that hold a number."""
    numeric = [name for name, cell in row.items() if _parse_number(cell) is not None]
    listed = ", ".join(numeric[:_MAX_LISTED]) + (", …" if len(numeric) > _MAX_LISTED else "")
    return f"Select one with --metric; columns of numbers: {listed or 'none'}."


def _parse_point(path: Path, number: int, row: dict[str, Any], keys: tuple[str, ...]) -> SeriesPoint:
    """The point in `row`, the file's point `number`: its figure is under the first of `keys` that it has. Raises
    `BadFile` if there is none or it is not a number."""
    key = next((key for key in keys if key in row), None)
    if key is None:
        raise BadFile(f"{path}: point {number} has no {keys[0]!r}.", _list_columns(row))
    value = _parse_number(row[key])
    if value is None:
        raise BadFile(
            f"{path}: point {number} is {row[key]!r}, which is not a number.",
            "Leave out points that were not measured.",
        )
    fields = renamed_keys.upgraded_point(row)
    texts = {name: str(fields[name] or "") for name in _TEXT_FIELDS if name in fields}
    if _parse_number(texts.get("time")) is not None:  # a duration, not a date
        del texts["time"]
    return SeriesPoint(value=value, **texts)


def _parse_number(cell: object) -> float | None:
    """A finite number, or None if `cell` is not one."""
    try:
        value = float(cell) if isinstance(cell, str | int | float) and not isinstance(cell, bool) else float("nan")
    except (ValueError, OverflowError):  # a text, or an integer beyond the largest float
        return None
    return value if abs(value) < float("inf") else None


def _note_disorder(points: list[SeriesPoint]) -> tuple[str, ...]:
    """A note if the times are not in order; the order of the file is kept."""
    disordered = [n for n in range(1, len(points)) if points[n].time and points[n].time < points[n - 1].time]
    if not disordered:
        return ()
    return (
        f"{units.counted(len(disordered), 'point has', 'points have')} an earlier date than the point before, the "
        f"first at index {disordered[0]}. The order of the file is used.",
    )
