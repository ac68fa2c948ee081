"""Time in a job's records: nanoseconds since the epoch on a clock that is never set.

A wall clock is corrected by hours at times. The records of a job use the wall clock's reading when its supervisor
started, plus the monotonic clock since: all processes of a host agree, and no duration is negative.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

import msgspec

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class EpochClock(msgspec.Struct, frozen=True):
    """Offset from the monotonic clock of `host` to the clock of a job, in ns."""

    host: str = ""
    offset: int = 0


def _host() -> str:
    """Identify the running kernel, whose processes share a monotonic clock."""
    try:
        return _BOOT.read_text().strip()
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


def follow(clock: EpochClock) -> None:
    """Use the clock that a supervisor started, if it runs on this host."""
    if clock.host == _host():
        _clock[0] = clock
