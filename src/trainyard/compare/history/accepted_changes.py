"""Accepted changes: `trainyard-history.toml`, which users edit and commit.

[[accepted]]                # this change is known: it is shown without an alert
run = "1a2b3c4d"            # the first run after it; or commit = "..."
metric = "step_time"        # optional: all metrics if left out
reason = "longer sequences"

[[reset]]                   # the history begins here; earlier points are ignored
commit = "9f8e7d6c"
reason = "new machine"
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from trainyard import renamed_keys, words
from trainyard.compare.history.series_changes import SeriesChange
from trainyard.compare.history.sources.series import SeriesPoint
from trainyard.errors import BadFile, BadInput, UnknownName, described, near, nearest
from trainyard.formats import toml
from trainyard.formats.regular_files import unreadable

FILE_NAME = "trainyard-history.toml"
"""Default file, in the working directory."""
_MIN_PREFIX = 4
"""Smallest number of characters of an id or a commit."""
_RANGE_TOLERANCE = 2
"""Points by which an entry may miss the change's range."""
_UNKNOWN_KEY = re.compile(r"unknown field `([^`]*)` *(?:- at `\$([^`]*)`)?")
"""msgspec's message about a misspelt key: the key, and the path of its table."""


class AcceptedChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Identifies a point by a prefix of either its run's id or its commit."""

    run: str = ""
    commit: str = ""
    metric: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        """Raises `BadInput` unless exactly one of run and commit is given, and has enough characters."""
        if bool(self.run) == bool(self.commit):
            raise BadInput(
                f"run = {self.run!r} and commit = {self.commit!r}, but an entry names exactly one of the two."
            )
        if len(self.run or self.commit) < _MIN_PREFIX:
            raise BadInput(f"{self.run or self.commit!r} is too short: {_MIN_PREFIX} characters at least.")

    def find_point(self, points: tuple[SeriesPoint, ...]) -> int | None:
        """Index of the first point that matches; None if there is none."""
        for index, point in enumerate(points):
            if (self.run and point.run.startswith(self.run)) or (self.commit and point.commit.startswith(self.commit)):
                return index
        return None

    @property
    def label(self) -> str:
        return f"run {self.run}" if self.run else f"commit {self.commit}"


class Accepted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of the file: the changes that are known, and the points at which the history begins again."""

    accepted: tuple[AcceptedChange, ...] = ()
    reset: tuple[AcceptedChange, ...] = ()

    def find_begin(self, points: tuple[SeriesPoint, ...], metric: str) -> int:
        """Index in `points` at which the history of `metric` begins: that of the last reset, 0 without any."""
        return max((reset.find_point(points) or 0 for reset in self.reset if reset.metric in ("", metric)), default=0)

    def find_entry(self, change: SeriesChange, points: tuple[SeriesPoint, ...], metric: str) -> AcceptedChange | None:
        """The entry that accepts a change of the series `points` and `metric`: its point is in the range of possible
        positions of the change, or at most `_RANGE_TOLERANCE` points outside it. None if there is none."""
        last = max(change.high, change.until)
        for entry in self.accepted:
            index = entry.find_point(points)
            if (
                entry.metric in ("", metric)
                and index is not None
                and change.low - _RANGE_TOLERANCE <= index <= last + _RANGE_TOLERANCE
            ):
                return entry
        return None

    def list_unmatched(self, points: tuple[SeriesPoint, ...], metric: str) -> list[str]:
        """A line for each entry that matches no point or has an unknown metric. `points`: the runs of the series;
        `metric`: the metric whose history they are."""
        entries = [("accepted", entry) for entry in self.accepted] + [("reset", entry) for entry in self.reset]
        lines = [
            f"{entry.label} is named under {table}, but is not in this series."
            for table, entry in entries
            if entry.find_point(points) is None
        ]
        for table, entry in entries:
            if entry.metric not in ("", metric) and not _is_metric(entry.metric):
                hint = near(entry.metric, [metric, *words.METRICS])
                lines.append(
                    f"{entry.label} is named under {table} for {entry.metric!r}, which is not a metric. {hint}"
                )
        return lines


def _is_metric(name: str) -> bool:
    """Whether `name` is a metric of the vocabulary."""
    try:
        words.metric(name)
    except UnknownName:
        return False
    return True


def read(path: Path) -> Accepted:
    """Read the file. Raises `BadFile` with the path in the document if it is not valid."""
    try:
        document = toml.loads(path.read_text("utf-8"))
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise BadFile(f"{path}: cannot be read as text: {error}.") from error
    except toml.DecodeError as error:
        raise BadFile(f"{path}: not TOML: {error}.") from error
    try:
        return msgspec.convert(document, Accepted)
    except msgspec.ValidationError as error:
        if unknown := _UNKNOWN_KEY.search(str(error)):
            kind = AcceptedChange if unknown[2] else Accepted
            message = f"{path} at ${unknown[2] or ''}: unknown key {unknown[1]!r}."
            renamed = renamed_keys.ACCEPTED_KEYS.get(unknown[1]) if unknown[2] else None
            next_step = f"Use {renamed}." if renamed else nearest(unknown[1], kind.__struct_fields__)
            raise BadFile(message, next_step) from error
        message, next_step = described(error)
        raise BadFile(f"{path}: {message}.", next_step) from error
