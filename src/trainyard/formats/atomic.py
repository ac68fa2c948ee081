"""A file appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainyard.errors import PlaceUnwritable
from trainyard.printable import paired


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path in the same folder to write to, which replaces `path` at the end. What is not a regular file (a pipe, a
    device such as /dev/stdout) is written to directly. Raises `PlaceUnwritable`."""
    partial: Path | None = None
    try:
        if path.exists() and not path.is_file():
            yield path
            return
        path = path.resolve() if path.is_symlink() else path
        partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        yield partial
        partial.replace(path)
    except OSError as error:
        raise PlaceUnwritable(
            f"{path} cannot be written: {error.strerror}.", "Name a file in a folder you may write to."
        ) from error
    finally:
        if partial is not None:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def write_text(text: str, path: Path) -> None:
    """Writes a text file in UTF-8, whole or not at all. Raises `PlaceUnwritable`."""
    with replacing(path) as partial:
        partial.write_bytes(paired(text).encode())
