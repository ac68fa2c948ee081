"""The end of a log file."""

from __future__ import annotations

from pathlib import Path

from trainyard.redact import redact

_MOST_BYTES = 1 << 20
"""Bytes at the end of a log that are read."""


def last_lines(path: Path, count: int) -> tuple[str, ...]:
    """The last `count` lines of the log at `path` without secrets, out of its last MiB; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _MOST_BYTES))
            lines = redact(file.read().decode("utf-8", "replace")).splitlines()
    except OSError:
        return ()
    return tuple(lines[-count:]) if count > 0 else ()
