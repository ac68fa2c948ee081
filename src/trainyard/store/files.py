"""Reading files whose contents were not written by this process: regular files alone, and errors that name the file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from trainyard.errors import BadFile

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding a document raises that is not what it should be; the last for one that is nested too deeply."""
_MOST_BITS = 64


def read_bytes(path: Path, shown: str = "") -> bytes:
    """The contents of a regular file; messages call it `shown`. Raises `BadFile`."""
    with open_regular(path, shown) as file:
        return file.read()


@contextmanager
def open_regular(path: Path, shown: str = "") -> Iterator[IO[bytes]]:
    """A regular file to read; messages call it `shown`. A pipe or device, which could block, is refused.

    Raises `BadFile`, also for an `OSError` inside the block, which should only read."""
    shown = shown or str(path)
    try:
        with open(path, "rb", opener=_without_blocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadFile(f"{shown}: not a regular file.")
            yield file
    except OSError as error:
        raise BadFile(f"{shown}: cannot be read: {error.strerror or error}.") from error


def is_regular(path: Path) -> bool:
    """Whether there is a regular file, or a link to one; False also if that cannot be found out."""
    try:
        return path.is_file()
    except OSError:
        return False


def check_integers(value: object, shown: str) -> None:
    """Raises `BadFile` for an integer in the decoded JSON document that does not fit 64 bits: figures are floats and
    64-bit columns, and no larger one was ever written."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            rest.extend(item.values())
        elif isinstance(item, list):
            rest.extend(item)
        elif isinstance(item, int) and item.bit_length() > _MOST_BITS:
            raise BadFile(f"{shown}: holds an integer of {item.bit_length()} bits, but at most {_MOST_BITS} are read.")


def _without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
