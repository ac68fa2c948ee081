"""A whole file in memory, within one limit, and JSON from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from trainyard import units
from trainyard.errors import BadFile, DamagedFile, FileTooLarge
from trainyard.formats.regular_files import unreadable

LIMIT = 4 << 30
"""Bytes of a file that these readers hold in memory, at most."""
HEAD = 65536
"""Bytes at a file's beginning by which a reader knows its kind."""
_T = TypeVar("_T")


def head(path: Path) -> bytes:
    """The first bytes; empty where the file cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD)
    except OSError:
        return b""


def size(path: Path, limit: int) -> int:
    """In bytes. Raises `BadFile`: missing, larger than the limit."""
    try:
        found = path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error
    limit = min(limit, LIMIT)
    if found > limit:
        raise FileTooLarge(
            f"{path}: {units.show_size(found)} is more than the {units.show_size(limit)} that this reader holds.",
            "Record fewer steps.",
        )
    return found


def whole(path: Path, limit: int) -> bytes:
    """All bytes. Raises `BadFile`: missing, empty, larger than the limit."""
    size(path, limit)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    if not data.strip():
        raise DamagedFile(
            f"{path}: the file is empty ({len(data):,} bytes).", "Was the run cut short before the profile was written?"
        )
    return data


def record(decoder: Callable[[bytes | str], _T], raw: msgspec.Raw) -> _T:
    """One record of a document whose records were left raw: their texts have not been looked at yet."""
    try:
        return decoder(raw)
    except UnicodeDecodeError:
        return decoder(bytes(raw).decode("utf-8", "replace"))


def decode(path: Path, limit: int, kind: type[_T], tool: str) -> _T:
    """The file's JSON as `kind`. NaN and Infinity are read as null, and bytes that are no UTF-8 replaced. Raises
    `BadFile`."""
    data = whole(path, limit).removeprefix(b"\xef\xbb\xbf")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadFile(f"{path}: not what {tool} writes: {error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = error
    try:
        plain = json.loads(data.decode("utf-8", "replace"), parse_constant=lambda _: None, strict=False)
        return msgspec.json.decode(json.dumps(plain), type=kind)
    except msgspec.ValidationError as error:
        raise BadFile(f"{path}: not what {tool} writes: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise DamagedFile(
            f"{path}: not JSON, or cut short: {why} ({len(data):,} bytes).", "Was the file still being written?"
        ) from error
