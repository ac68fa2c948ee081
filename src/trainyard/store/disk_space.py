"""Writes to the store: the errors of a disk that is full or cannot be written, and the space that is free."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.errors import DiskFull, EnvironmentFailed, PlaceUnwritable
from trainyard.formats.atomic import write_durable
from trainyard.units import show_size

_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT}


@contextmanager
def writing(place: Path, size: int = 0) -> Iterator[None]:
    """Turns the system's refusals inside the block into `PlaceUnwritable`, `DiskFull` or `EnvironmentFailed`."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in _FULL:
            raise DiskFull(
                f"{place}: the disk is full: {show_size(size)} to write, {show_size(free_bytes(place))} free.",
                "Free some space, or set TRAINYARD_STORE to a folder on another disk.",
            ) from error
        if error.errno in _REFUSED:
            raise PlaceUnwritable(
                f"{place}: cannot be written: {why}.", "Set TRAINYARD_STORE to a folder that you can write."
            ) from error
        raise EnvironmentFailed(f"{place}: cannot be written: {why}.") from error


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file of the store durably: with its contents and its name on the disk when this returns."""
    with writing(path, len(data)):
        write_durable(path, data)


def free_bytes(path: Path) -> int:
    """Bytes free on the disk that holds `path` or its nearest existing parent."""
    there = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
    return shutil.disk_usage(there).free
