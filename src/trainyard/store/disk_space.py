"""Writing so that a kill leaves the old file or the new one, never half of either."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.errors import EnvironmentFailed, PlaceUnwritable
from trainyard.fault_points import fault_point
from trainyard.units import show_size

_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT}


@contextmanager
def writing(place: Path, size: int = 0) -> Iterator[None]:
    """Turns the system's refusals inside the block into `PlaceUnwritable` or `EnvironmentFailed`."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in _FULL:
            raise EnvironmentFailed(
                f"{place}: the disk is full: {show_size(size)} to write, {show_size(free_bytes(place))} free.",
                "Free some space, or set TRAINYARD_STORE to a folder on another disk.",
            ) from error
        if error.errno in _REFUSED:
            raise PlaceUnwritable(
                f"{place}: cannot be written: {why}.", "Set TRAINYARD_STORE to a folder that you can write."
            ) from error
        raise EnvironmentFailed(f"{place}: cannot be written: {why}.") from error


def write_whole(path: Path, data: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the folder."""
    part = path.with_name(f".{path.name}.part")
    with writing(path, len(data)):
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                fault_point("store.part")
                os.fsync(file.fileno())
            fault_point("store.synced")
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    fault_point("store.renamed")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def free_bytes(path: Path) -> int:
    """Bytes free on the disk that holds `path` or its nearest existing parent."""
    there = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
    return shutil.disk_usage(there).free
