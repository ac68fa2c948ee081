"""A series: one figure a run, in the order in which the runs were started, and what is known of each run."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import msgspec

from trainyard import words
from trainyard.errors import BadFile, BadInput
from trainyard.formats.regular_files import unreadable
from trainyard.words import Metric

_TEXTS = ("run", "commit", "when")


class SeriesPoint(msgspec.Struct, frozen=True, kw_only=True):
    """`run` and `commit` are empty where they are not known, `when` too: UTC, ISO 8601."""

    value: float
    run: str = ""
    commit: str = ""
    when: str = ""

    @property
    def name(self) -> str:
        """How people speak of it: the commit it was made on, else the run."""
        return self.commit[:10] or self.run or self.when[:16]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """`name`: of whom. `metric` as in words.metric, or a name of the file's own."""

    name: str
    metric: str
    about: Metric
    points: tuple[SeriesPoint, ...]
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> list[float]:
        return [point.value for point in self.points]


def load(path: Path, metric: str) -> Series:
    """A file's series: JSON, a list of numbers or of objects; or CSV with a head. `value` is the figure, or `metric`;
    `run`, `commit` and `when` are taken along. A metric of words.METRICS has its direction, any other one is better
    when lower. Raises `BadFile` with the place for anything else."""
    text = _text(path)
    rows = _from_json(path, text) if text.lstrip().startswith(("[", "{")) else _from_csv(path, text)
    points = [_point(path, number, row, metric) for number, row in enumerate(rows)]
    if not points:
        raise BadFile(f"{path}: it has 0 points.", "Write at least 1.")
    try:
        about = words.metric(metric)
    except BadInput:
        about = Metric(metric, "A figure of a file.", "")
    return Series(name=path.stem, metric=metric, about=about, points=tuple(points), notes=_disorder(points))


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise BadFile(f"{path}: cannot be read as text: {error}.", "--series takes a JSON or CSV file.") from error


def _from_json(path: Path, text: str) -> list[dict[str, Any]]:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadFile(f"{path}: not JSON: {error}.") from error
    if isinstance(document, dict):
        document = document.get("points", document.get("values"))
    if not isinstance(document, list):
        raise BadFile(f"{path}: no list of points.", "Write [1.0, 2.0, ...], or a list of objects with a `value`.")
    return [row if isinstance(row, dict) else {"value": row} for row in document]


def _from_csv(path: Path, text: str) -> list[dict[str, Any]]:
    lines = list(csv.reader(io.StringIO(text)))
    lines = [line for line in lines if line]
    if not lines:
        return []
    if len(lines[0]) == 1 and _number(lines[0][0]) is not None:
        return [{"value": line[0]} for line in lines]
    head = [name.strip() for name in lines[0]]
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(head):
            raise BadFile(f"{path}:{number}: {len(line)} fields under a head of {len(head)}.")
    return [dict(zip(head, line)) for line in lines[1:]]


def _point(path: Path, number: int, row: dict[str, Any], metric: str) -> SeriesPoint:
    key = "value" if "value" in row else metric
    if key not in row:
        named = "no `value`" if metric == "value" else f"neither `value` nor {metric!r}"
        raise BadFile(f"{path}: point {number} has {named}.", f"Say which it is: --metric; it has {', '.join(row)}.")
    value = _number(row[key])
    if value is None:
        raise BadFile(
            f"{path}: point {number} is {row[key]!r}, which is no number.", "Leave out what was not measured."
        )
    return SeriesPoint(value=value, **{name: str(row[name] or "") for name in _TEXTS if name in row})


def _number(said: object) -> float | None:
    """None for what is no finite number."""
    try:
        value = float(said) if isinstance(said, str | int | float) and not isinstance(said, bool) else float("nan")
    except (ValueError, OverflowError):  # a text, or an integer beyond the largest float
        return None
    return value if abs(value) < float("inf") else None


def _disorder(points: list[SeriesPoint]) -> tuple[str, ...]:
    """Clocks that went backwards: the file's order is kept."""
    back = [n for n in range(1, len(points)) if points[n].when and points[n].when < points[n - 1].when]
    if not back:
        return ()
    return (
        f"{len(back)} points are dated before the one before them, point {back[0]} first: the order is the file's.",
    )
