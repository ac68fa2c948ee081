"""The cost of a command, CPU seconds and peak memory of the process and its children, and the times of a running
process, as counted by the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple


class Cost(NamedTuple):
    """Medians over the repeats: user plus system CPU time (s), and peak resident memory (bytes)."""

    cpu_s: float
    peak_bytes: float


def cost(args: Sequence[str], repeats: int) -> Cost:
    """Runs `trainyard <args>` once unmeasured, then `repeats` times.

    Linux starts a child's peak at its parent's size: this process must stay small (no numpy here).
    Raises `CalledProcessError` when the command fails.
    """
    command = [sys.executable, "-m", "trainyard.cli.main", *args]
    costs = [once(command) for _ in range(repeats + 1)][1:]
    return Cost(median(run.cpu_s for run in costs), median(run.peak_bytes for run in costs))


def once(command: Sequence[str], environment: Mapping[str, str] | None = None, exit_code: int = 0) -> Cost:
    """The cost of `command`, with these variables added to ours. Byte-code is cached, as in an installation. Raises
    `CalledProcessError` if it ends with another exit code."""
    env = {**os.environ, **(environment or {})}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != exit_code:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


class ProcessTimes(NamedTuple):
    """When a process started, since boot, and its CPU time, its threads included, both in seconds."""

    started_s: float
    cpu_s: float


def process_times(pid: int, proc: Path = Path("/proc")) -> ProcessTimes:
    """The times of a running process: fields 22 (start), 14 and 15 (user, system) of its /proc/PID/stat, in ticks."""
    stat = (proc / str(pid) / "stat").read_text()
    fields = ["", "", "", *stat.rpartition(")")[2].split()]  # the fields from 3 on follow the name in parentheses
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return ProcessTimes(int(fields[22]) / ticks_per_s, (int(fields[14]) + int(fields[15])) / ticks_per_s)
