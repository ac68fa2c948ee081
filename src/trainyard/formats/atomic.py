"""Atomic writes: a file has either its old or its new contents, never a part of them, even after a kill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainyard.errors import PlaceUnwritable
from trainyard.fault_points import fault_point
from trainyard.printable import paired


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replaces an output file named by the user: yields a path in the same folder, which replaces `path` at the end. A
    file that is not regular (a pipe, a device such as /dev/stdout) is written directly. Raises `PlaceUnwritable`."""
    try:
        if path.exists() and not path.is_file():
            yield path
            return
        path = path.resolve() if path.is_symlink() else path
        # Two processes may write the same output.
        with _rename_when_complete(path.with_name(f".{path.name}.{os.getpid()}.part"), path) as partial:
            yield partial
    except OSError as error:
        raise PlaceUnwritable(
            f"{path} cannot be written: {error.strerror}.", "Pass a file in a folder that you may write to."
        ) from error


def write_text(text: str, path: Path) -> None:
    """Writes an output file in UTF-8, as `replacing` does. Raises `PlaceUnwritable`."""
    with replacing(path) as partial:
        partial.write_bytes(paired(text).encode())


@contextmanager
def replacing_own(path: Path) -> Iterator[Path]:
    """Replaces a file in a folder that only one process at a time writes to: yields `.NAME.part` in the same folder,
    which replaces `path` at the end. The next write overwrites what a killed one left. Raises `OSError`."""
    with _rename_when_complete(path.with_name(f".{path.name}.part"), path) as partial:
        yield partial


def write_durable(path: Path, data: bytes) -> None:
    """Writes a file as `replacing_own` does; contents and name are on disk when this returns. Raises `OSError`."""
    with replacing_own(path) as partial:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            fault_point("store.part")
            os.fsync(file.fileno())
        fault_point("store.synced")
    sync_folder(path.parent)
    fault_point("store.renamed")


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder to disk. Raises `OSError`."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _rename_when_complete(partial: Path, path: Path) -> Iterator[Path]:
    """Yields `partial`, a path to write to, and renames it to `path` at the end; removes it if the block raises."""
    try:
        yield partial
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
