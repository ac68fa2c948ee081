"""Hidden folders and files of work in progress. Each has the process that writes it in its name, to distinguish the
remains of a killed process from files that are still being written."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import time
from pathlib import Path

ABANDONED_AFTER_S = 86_400
"""Seconds without a change after which files of a process on another host, whose state is unknown, are abandoned."""
_WRITER = re.compile(r"[.-](?P<pid>[1-9]\d{0,9})\.(?P<host>[0-9a-f]{8})\.[0-9a-f]{8}\Z", re.ASCII)


def writer() -> str:
    """A unique suffix for a name: process id, hash of the host name, and a random part."""
    return f"{os.getpid()}.{_host()}.{secrets.token_hex(4)}"


def is_abandoned(path: Path) -> bool:
    """Whether no process writes `path` any more, so that it can be removed.

    That is so if its process on this host has ended or, for a process of another host and for a name without a process,
    if nothing in it has changed for `ABANDONED_AFTER_S`.
    """
    match = _WRITER.search(path.name)
    if match and match["host"] == _host():
        return not _is_alive(int(match["pid"]))
    return time.time() - _last_change(path) > ABANDONED_AFTER_S


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _is_alive(pid: int) -> bool:
    """Whether a process with this id exists on this host."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def _last_change(path: Path) -> float:
    """Latest modification time in seconds since the epoch; files that disappear meanwhile are ignored."""
    last = 0.0
    for file in (path, *path.rglob("*")):
        try:
            last = max(last, file.lstat().st_mtime)
        except OSError:
            continue
    return last
