"""Regular files: recognizes and opens them safely, and computes their digests."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trainyard.errors import BadFile, MissingFile

_IRREGULAR_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def irregular(mode: int) -> str:
    """The type of a file that is not regular, by its mode (`stat.st_mode`); empty for a regular file."""
    if stat.S_ISREG(mode):
        return ""
    return next((kind for is_kind, kind in _IRREGULAR_KINDS if is_kind(mode)), "a special file")


def is_regular(path: Path, links: bool = True) -> bool:
    """Whether the path is a regular file or, if `links` is true, a link to one; False if that cannot be determined."""
    try:
        return not irregular((path.stat() if links else path.lstat()).st_mode)
    except (OSError, ValueError):  # also a name that is too long or holds a NUL
        return False


def read_bytes(path: Path, shown: str = "") -> bytes:
    """Reads a regular file; messages name it `shown`. Raises `BadFile`."""
    with open_regular(path, shown) as file:
        return file.read()


@contextmanager
def open_regular(path: Path, shown: str = "") -> Iterator[IO[bytes]]:
    """Opens a regular file for reading; messages name it `shown`. Pipes and devices, which could block, are rejected.

    Raises `BadFile`, also for an `OSError` inside the block, which should only read."""
    shown = shown or str(path)
    if "\0" in str(path):
        raise BadFile(f"{shown!r}: a null byte in the name of a file.")
    try:
        with open(path, "rb", opener=_open_without_blocking) as file:
            if kind := irregular(os.fstat(file.fileno()).st_mode):
                raise BadFile(f"{shown}: not a regular file, but {kind}.")
            yield file
    except OSError as error:
        raise unreadable(shown, error) from error


def unreadable(shown: Path | str, error: OSError | ValueError, next_step: str = "") -> BadFile:
    """The error for a file that the system cannot read: `MissingFile` if it does not exist. Python raises `ValueError`
    for a path with a NUL in it. `next_step`: the remedy in the message."""
    kind = MissingFile if isinstance(error, FileNotFoundError) else BadFile
    reason = error.strerror if isinstance(error, OSError) else None
    return kind(f"{shown}: cannot be read: {reason or error}.", next_step)


def sha256_of(path: Path) -> str:
    """The SHA-256 digest of a file's contents, in hexadecimal. Raises `OSError`."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open_without_blocking(path: str, flags: int) -> int:
    """Opens a file so that a pipe without a writer does not block, as the `opener` of `open`."""
    return os.open(path, flags | os.O_NONBLOCK)
