"""A file appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainyard.errors import PlaceUnwritable


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place at the end. Raises `PlaceUnwritable`."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise PlaceUnwritable(
            f"{path} cannot be written: {error.strerror}.", "Name a file in a folder you may write to."
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
