"""Read the lines that another process appends to a file."""

from __future__ import annotations

from pathlib import Path


def read_appended(path: Path, offset: int, incomplete: bool = False) -> bytes:
    """Read the lines of a file from byte `offset` on; empty if there is no such file.

    A last line without an end, which may still be written, is left out unless `incomplete` is set. The next offset is
    `offset` plus the length of the result.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return b""
    return data if incomplete else data[: data.rfind(b"\n") + 1]
