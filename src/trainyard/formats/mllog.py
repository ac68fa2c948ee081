"""`:::MLLOG` lines, MLPerf's log of a training run: a marker, then one JSON object, anywhere in a program's output.

The format is that of mlcommons/logging (mlperf_logging/mllog: namespace, time_ms, event_type, key, value, metadata).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from trainyard.errors import BadFile, FileTooLarge
from trainyard.formats.decoding import UNREADABLE
from trainyard.formats.regular_files import unreadable

MARK = b":::MLLOG"
_MAX_LINE_BYTES = 1 << 20
"""Maximum bytes of a line; a longer one is not a log line."""

Event = Literal["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"]


class MllogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `value` and `metadata` come from other programs and are not validated."""

    namespace: str | None = ""
    time_ms: float = 0
    event_type: str = "POINT_IN_TIME"
    key: str
    value: Any = None
    metadata: dict[str, Any] | None = None

    def number(self, name: str = "") -> float | None:
        """The value, or the metadata's value of `name`, if it is a finite number; else None."""
        value = (self.metadata or {}).get(name) if name else self.value
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e300:
            return None
        return float(value)


def read(path: Path) -> list[MllogEntry]:
    """Reads the log's entries in order; skips other lines. Raises `BadFile`."""
    try:
        with path.open("rb") as file:
            return list(_parse_entries(path, file))
    except OSError as error:
        raise unreadable(path, error) from error


def _parse_entries(path: Path, file: Any) -> Iterator[MllogEntry]:
    """Yields the entries of an open log. Lines are read in pieces of at most `_MAX_LINE_BYTES`; a line without an end
    is the last one of a run that was killed."""
    line_number, ends_line = 0, True  # `ends_line`: whether the piece before ended its line
    while line := file.readline(_MAX_LINE_BYTES):
        line_number += ends_line
        mark_at = line.find(MARK) if ends_line else -1
        ends_line = line.endswith(b"\n")
        if mark_at < 0:
            continue
        if not ends_line and len(line) == _MAX_LINE_BYTES:
            raise FileTooLarge(f"{path}:{line_number}: a line of more than {_MAX_LINE_BYTES >> 20} MiB.")
        try:
            yield msgspec.json.decode(line[mark_at + len(MARK) :].strip(), type=MllogEntry)
        except UNREADABLE as error:
            if not ends_line:  # a killed run's last line
                return
            raise BadFile(f"{path}:{line_number}: not an MLLOG entry: {error}.") from error


def line(
    key: str, value: object, time_ms: int, metadata: Mapping[str, object] | None = None, event: Event = "POINT_IN_TIME"
) -> str:
    """Formats one entry, without the end of the line. `time_ms`: since the epoch."""
    entry = {
        "namespace": "",
        "time_ms": time_ms,
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": dict(metadata or {}),
    }
    return f"{MARK.decode()} {msgspec.json.encode(entry).decode()}"
