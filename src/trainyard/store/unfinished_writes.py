"""Hidden folders and files of work in progress, each with the process that writes it in its name, so that what a killed
process left can be told from what another still writes."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import time
from pathlib import Path

OLD_S = 86_400
"""Seconds without a change after which the work of a process on another host, which cannot be asked, is abandoned."""
_WRITER = re.compile(r"[.-](?P<pid>[1-9]\d{0,9})\.(?P<host>[0-9a-f]{8})\.[0-9a-f]{8}\Z", re.ASCII)


def writer() -> str:
    """The end of a name: this process, its host, and a part that no other name has."""
    return f"{os.getpid()}.{_host()}.{secrets.token_hex(4)}"


def is_abandoned(path: Path) -> bool:
    """Whether nobody writes it any more: its process on this host has ended, or, where that cannot be known, nothing in
    it has changed for `OLD_S`."""
    match = _WRITER.search(path.name)
    if match and match["host"] == _host():
        return not _is_alive(int(match["pid"]))
    return time.time() - _last_change(path) > OLD_S


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def _last_change(path: Path) -> float:
    """Seconds since the epoch; what vanishes meanwhile does not count."""
    last = 0.0
    for one in (path, *path.rglob("*")):
        try:
            last = max(last, one.lstat().st_mtime)
        except OSError:
            continue
    return last
