"""Measures the CPU load of the host from the counters of Linux in /proc and /sys."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import NamedTuple

from trainyard.machine_load import MachineLoad

_STAT = Path("/proc/stat")
_THROTTLES = "devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count"
_SYS = Path("/sys")
_PRESENT_WINDOW_S = 0.25


class _Counters(NamedTuple):
    """Totals since boot, in CPU-seconds: `busy_s` of all processes, `stolen_s` by a hypervisor, `own_s` of this process
    and its ended children; `time_s`: monotonic time; `throttles`: thermal throttle events of all cores. `LoadMeter`
    takes the middle three fields together."""

    time_s: float
    busy_s: float
    stolen_s: float
    own_s: float
    throttles: int


class LoadMeter:
    """Measures the load from its construction to `finish`."""

    def __init__(self) -> None:
        self._start = _read_counters()

    def finish(self) -> MachineLoad | None:
        """The mean load since the construction, in cores: CPU-seconds per second.

        The run's own processes are this process and those of its descendants that have ended and were waited for. None
        if the kernel has no such counters.
        """
        end = _read_counters()
        if self._start is None or end is None or end.time_s <= self._start.time_s:
            return None
        window_s = end.time_s - self._start.time_s
        busy, stolen, own = (
            max(0.0, end_s - start_s) / window_s for start_s, end_s in zip(self._start[1:4], end[1:4], strict=True)
        )
        return MachineLoad(
            window_s=round(window_s, 3),
            cores=os.cpu_count() or 1,
            run_cores=round(min(own, busy), 3),
            other_cores=round(max(0.0, busy - own), 3),
            stolen_cores=round(stolen, 3),
            cpu_throttles=max(0, end.throttles - self._start.throttles),
        )


def present_load() -> MachineLoad | None:
    """The load of other processes now, over a quarter of a second. None if the kernel has no such counters."""
    meter = LoadMeter()
    time.sleep(_PRESENT_WINDOW_S)
    return meter.finish()


def _read_counters() -> _Counters | None:
    """The counters now; None if /proc/stat cannot be read (another system than Linux) or has another form."""
    try:
        # First line of /proc/stat: "cpu" and ticks in user, nice, system, idle, iowait, irq, softirq, steal, ...
        name, *ticks = _STAT.read_text("ascii").splitlines()[0].split()
        user, nice, system, _idle, _iowait, interrupts, soft_interrupts, stolen = (
            int(text) / os.sysconf("SC_CLK_TCK") for text in ticks[:8]
        )
    except (OSError, ValueError, IndexError):
        return None
    if name != "cpu":
        return None
    usage = [resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return _Counters(
        time_s=time.monotonic(),
        busy_s=user + nice + system + interrupts + soft_interrupts,
        stolen_s=stolen,
        own_s=sum(part.ru_utime + part.ru_stime for part in usage),
        throttles=sum(map(_read_count, _SYS.glob(_THROTTLES))),
    )


def _read_count(path: Path) -> int:
    """The number in a file of /sys; 0 if it cannot be read."""
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return 0
