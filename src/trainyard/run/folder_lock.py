"""The lock of a run's folder, which a process holds while its ranks run."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.errors import RunInUse

_LOCK = "lock"
_TRIES, _PAUSE_S = 5, 0.05
"""Attempts to lock a folder and the time between them: a look at the lock holds it for an instant."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes that would start ranks in it. Raises `RunInUse` if one has."""
    with (folder / _LOCK).open("ab") as lock:
        for remaining in reversed(range(_TRIES)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if not remaining:
                    raise RunInUse(
                        f"run {folder.name} is still running.", "Wait for it to end, or end it first."
                    ) from error
                time.sleep(_PAUSE_S)
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process holds the folder's lock. False on a file system that does not share locks with the host of
    that process."""
    try:
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no file, or a file system without locks
        return False
    return False
