"""Durable writes to the store, with errors for a full or read-only disk."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.errors import DiskFull, EnvironmentFailed, PlaceUnwritable
from trainyard.formats.atomic import write_durable
from trainyard.units import show_size

_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT}
_NOT_WRITABLE_ERRNOS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.ENOENT,
}


_CHOOSE_STORE = "Set TRAINYARD_STORE to a folder that you can write to."


@contextmanager
def writing(path: Path, size: int = 0, next_step: str = _CHOOSE_STORE) -> Iterator[None]:
    """Convert `OSError` inside the block into `DiskFull`, `PlaceUnwritable` (no permission, or not a folder) or
    `EnvironmentFailed` (anything else).

    `path`: the file or folder that is written; `size`: bytes to write; both for the message. `next_step`: the remedy
    if the path is not writable.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL_ERRNOS:
            raise DiskFull(
                f"{path}: the disk is full: {show_size(size)} to write, {show_size(free_bytes(path))} free.",
                "Free some space, or set TRAINYARD_STORE to a folder on another disk.",
            ) from error
        if error.errno in _NOT_WRITABLE_ERRNOS:
            raise PlaceUnwritable(f"{path}: cannot be written: {reason}.", next_step) from error
        raise EnvironmentFailed(f"{path}: cannot be written: {reason}.") from error


def write_whole(path: Path, data: bytes) -> None:
    """Write a file of the store durably: its contents and its name are on the disk when this returns."""
    with writing(path, len(data)):
        write_durable(path, data)


def free_bytes(path: Path) -> int:
    """Bytes free on the disk that holds `path` or its nearest existing parent."""
    existing = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
    return shutil.disk_usage(existing).free
