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
_LONGEST = 1 << 20
"""Bytes of a line; what is longer is no log line."""

Event = Literal["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"]


class MllogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `value` and `metadata` are somebody else's: look before use."""

    namespace: str | None = ""
    time_ms: float = 0
    event_type: str = "POINT_IN_TIME"
    key: str
    value: Any = None
    metadata: dict[str, Any] | None = None

    def number(self, name: str = "") -> float | None:
        """The value, or that of the metadata's `name`, where it is a finite number."""
        said = (self.metadata or {}).get(name) if name else self.value
        if not isinstance(said, int | float) or isinstance(said, bool) or not abs(said) < 1e300:
            return None
        return float(said)


def read(path: Path) -> list[MllogEntry]:
    """The log's entries in their order; other lines are passed over. Raises `BadFile`."""
    try:
        with path.open("rb") as file:
            return list(_entries(path, file))
    except OSError as error:
        raise unreadable(path, error) from error


def _entries(path: Path, file: Any) -> Iterator[MllogEntry]:
    number, whole = 0, True
    while line := file.readline(_LONGEST):
        number += whole
        at = line.find(MARK) if whole else -1
        whole = line.endswith(b"\n")
        if at < 0:
            continue
        if not whole and len(line) == _LONGEST:
            raise FileTooLarge(f"{path}:{number}: a line of more than {_LONGEST >> 20} MiB.")
        try:
            yield msgspec.json.decode(line[at + len(MARK) :].strip(), type=MllogEntry)
        except UNREADABLE as error:
            if not whole:  # a killed run's last line
                return
            raise BadFile(f"{path}:{number}: not an MLLOG entry: {error}.") from error


def line(
    key: str, value: object, time_ms: int, metadata: Mapping[str, object] | None = None, event: Event = "POINT_IN_TIME"
) -> str:
    """One entry as text, without the line's end."""
    said = {
        "namespace": "",
        "time_ms": time_ms,
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": dict(metadata or {}),
    }
    return f"{MARK.decode()} {msgspec.json.encode(said).decode()}"
