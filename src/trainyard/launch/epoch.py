"""Time in a job's records: nanoseconds since the epoch on a clock that is never set.

A wall clock is corrected by hours at times. The records of a job use the wall clock's reading when its supervisor
started, plus the monotonic clock since: all processes of a host agree, and no duration is negative. Processes of other
hosts measure the offset of their own monotonic clock to that (`supervisor/clock_exchange.py`).
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import msgspec

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = "/proc/self/ns/time"


class EpochClock(msgspec.Struct, frozen=True):
    """Offset from the monotonic clock of `host` to the clock of a job, in ns."""

    host: str = ""
    offset: int = 0


def _host() -> str:
    """Identify the running kernel and the time namespace, whose processes share a monotonic clock."""
    try:
        namespace = os.readlink(_TIME_NAMESPACE) if os.path.islink(_TIME_NAMESPACE) else ""
        return f"{_BOOT.read_text().strip()} {namespace}".strip()
    except OSError:
        return socket.gethostname()


_clock = [EpochClock(host=_host(), offset=time.time_ns() - time.monotonic_ns())]
"""The clock of this process, as the only element."""


def now_ns() -> int:
    return time.monotonic_ns() + _clock[0].offset


def start(after: int = 0) -> EpochClock:
    """Start the clock of a job from the wall clock, but not before `after`, and return it for the other processes."""
    _clock[0] = EpochClock(host=_host(), offset=max(time.time_ns(), after) - time.monotonic_ns())
    return _clock[0]


def follow(clock: EpochClock) -> bool:
    """Use the clock that a supervisor started, if it runs on this host; return whether it does."""
    if clock.host == _host():
        _clock[0] = clock
    return clock.host == _host()


def follow_measured(offset_ns: int) -> None:
    """Use the clock of a supervisor on another host. `offset_ns`: measured offset from this host's monotonic clock."""
    _clock[0] = EpochClock(host=_host(), offset=offset_ns)


def offset_ns() -> int:
    """The offset from this host's monotonic clock to the clock of this process, in ns."""
    return _clock[0].offset
