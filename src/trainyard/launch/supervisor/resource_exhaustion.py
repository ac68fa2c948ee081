"""Find the resource that a process ran out of: memory, by the kernel's counters, or storage, by full file systems."""

from __future__ import annotations

import errno
import os
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainyard.memory_cgroups import memory_groups, memory_limit_bytes
from trainyard.units import show_size

_COUNTERS = ("memory.events", "memory.oom_control")
"""Files of cgroup version 2 and version 1."""
_HOST = "/proc/vmstat"
_SHARED = "/dev/shm"  # noqa: S108  only measured, never written
_STORAGE_WORDS = ("no space left", "shared memory", "unable to write to file", "bus error", "dataloader worker")
_LOADER = "torch/utils/data/dataloader.py"
"""Raises errors of many types when its workers end."""
_LITTLE_BYTES = 1 << 16
"""Free bytes up to which a file system of any size counts as full."""
_COUNT_INTERVAL_S, _WINDOW_S = 1.0, 10.0
"""Least time between two counts, and the time for which counts are kept."""


def memory_group(pid: int) -> str:
    """Return the folder of a running process's memory cgroup; empty if there is none, or it has no counter of kills."""
    return _counted_group(memory_groups(pid))


def _counted_group(folders: Iterable[Path]) -> str:
    """The first of the cgroups `folders` that has a counter of kills; empty if none has."""
    return next((str(folder) for folder in folders if kills(str(folder)) >= 0), "")


def kills(counter: str) -> int:
    """Number of out-of-memory kills in a memory cgroup, or on the host; -1 if unknown. `counter`: folder of the cgroup,
    or `_HOST`."""
    paths = [Path(counter)] if counter == _HOST else [Path(counter) / name for name in _COUNTERS]
    for path in paths:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.isdecimal():
                return int(value)
    return -1


class Kills:
    """Counts out-of-memory kills on the host and in the cgroups of some processes.

    A killed process with much memory takes seconds to end, so that counts are kept for a while.
    """

    def __init__(self) -> None:
        self._groups: dict[int, str] = {}
        """Process id -> the folder of its memory cgroup; empty if there is none."""
        self._limits: dict[int, int] = {}
        """Process id -> the memory limit of its cgroups in bytes; 0 if there is none."""
        self._readings: list[tuple[float, dict[str, int]]] = []
        """(monotonic seconds, counter -> number of kills, -1 if unknown), oldest first."""

    def update(self, pids: Iterable[int]) -> None:
        """Read the counters for the running processes `pids`, at most about once a second; forget old readings."""
        now_s = time.monotonic()
        if self._readings and now_s - self._readings[-1][0] < _COUNT_INTERVAL_S:
            return
        folders = {pid: memory_groups(pid) for pid in pids}
        self._groups = {pid: _counted_group(groups) for pid, groups in folders.items()}
        self._limits = {pid: memory_limit_bytes(groups) for pid, groups in folders.items()}
        while len(self._readings) > 1 and now_s - self._readings[1][0] > _WINDOW_S:
            del self._readings[0]
        self._readings.append((now_s, {counter: kills(counter) for counter in {*self._groups.values(), _HOST}}))

    def cause(self, pid: int) -> str:
        """Return why the process `pid` was killed, if a count of out-of-memory kills has grown in the last `_WINDOW_S`
        seconds; else an empty string."""
        group = self._groups.get(pid, "")
        if self._has_grown(group):
            limit = self._limits.get(pid, 0)
            return "out of memory" + (f" in a cgroup that is limited to {show_size(limit)}" if limit else "")
        if self._has_grown(_HOST):
            return f"probably out of memory, as the kernel killed a process for it in the last {_WINDOW_S:g} s"
        return ""

    def _has_grown(self, counter: str) -> bool:
        """Whether the number of kills of this counter is larger than in the oldest reading that has it."""
        before = next((counts[counter] for _, counts in self._readings if counter in counts), -1)
        return 0 <= before < kills(counter)


def storage(error: BaseException, folders: Sequence[str] = ()) -> str:
    """Describe the file systems that are full, if the error may come from that; else return an empty string.

    An error may if its message mentions storage, or if it came from torch's data loader. `folders`: those in use, in
    addition to shared memory and temporary files. One line for each full file system, and advice.
    """
    text = str(error).lower()
    is_about_storage = getattr(error, "errno", None) == errno.ENOSPC or any(part in text for part in _STORAGE_WORDS)
    if not is_about_storage and not any(
        _LOADER in frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)
    ):
        return ""
    sentences = [
        line
        for folder in dict.fromkeys((_SHARED, tempfile.gettempdir(), *folders))
        if (line := _describe_if_full(folder))
    ]
    if sentences and sentences[0].startswith(_SHARED):
        sentences.append(
            "Loader workers pass batches through it: enlarge it (docker run --shm-size), or use num_workers = 0."
        )
    return "\n".join(sentences)


def _describe_if_full(folder: str) -> str:
    """A sentence on the file system of `folder` if less than 1 % or 64 KiB of it is free; else an empty string."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return ""
    free_bytes, size_bytes = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    if not size_bytes or free_bytes > max(_LITTLE_BYTES, size_bytes // 100):
        return ""
    return f"{folder} is full: {show_size(free_bytes)} of {show_size(size_bytes)} are free."
