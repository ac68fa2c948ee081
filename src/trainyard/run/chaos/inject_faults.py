"""Inject a rank's faults of a fault plan, before the steps at which they are due."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from trainyard.job import Job
from trainyard.run.chaos import chaos_files
from trainyard.run.chaos.fault_plan import FULL, Fault, FaultPlan
from trainyard.train.checkpoint import checkpoint_saver
from trainyard.train.checkpoint.checkpoint_store import CheckpointStore
from trainyard.train.process_group import Ranks

_RECENT = 32
"""Number of recent steps whose median is the step time."""


def fault_injector(run: Path, job: Job, ranks: Ranks, attempt: int) -> Callable[[int], object] | None:
    """Return a callable that a rank calls before each step; None in a run without chaos."""
    plan = chaos_files.armed(run)
    return None if plan is None else FaultInjector(run, plan, job, ranks, attempt)


class FaultInjector:
    """Injects faults; call it with the number of each step before it begins, outside the timed region."""

    def __init__(self, run: Path, plan: FaultPlan, job: Job, ranks: Ranks, attempt: int) -> None:
        """`attempt`: number of earlier attempts. Faults that an earlier attempt injected are left out."""
        self.run, self.job, self.ranks, self.attempt = run, job, ranks, attempt
        done = chaos_files.injected_faults(run)
        self.left = {
            number: fault for number, fault in enumerate(plan.fault) if number not in done and self._mine(fault)
        }
        self.share = 0.0
        self._took: list[float] = []
        self._since = 0.0

    def _mine(self, fault: Fault) -> bool:
        """Whether this rank injects the fault: the first rank of a node for the node, rank 0 for the job. Rank and node
        numbers are those of the plan only while all nodes are present."""
        if fault.node >= 0:
            whole = int(os.environ.get("GROUP_WORLD_SIZE", "1")) == self.job.recovery.nodes
            first = fault.node * self.ranks.local_world
            return whole and self.ranks.rank == first
        return self.ranks.rank == max(fault.rank, 0)

    def __call__(self, step: int) -> None:
        """Inject the faults that are due before `step`, and sleep if one of them was a delay."""
        if self._since:
            self._took = [*self._took, time.perf_counter() - self._since][-_RECENT:]
        for number, fault in list(self.left.items()):
            if step >= fault.step and self._can(fault, step):
                del self.left[number]
                self._make(number, fault, step)
        if self.share and self._took:
            time.sleep(self.share * median(self._took))
        self._since = time.perf_counter()

    def _can(self, fault: Fault, step: int) -> bool:
        if fault.kind == "flip_byte":
            return bool(CheckpointStore(self.run).steps())
        every = self.job.checkpoint.every
        return fault.kind != "fill_disk" or (step + 1) % every == 0

    def _make(self, number: int, fault: Fault, step: int) -> None:
        """Inject fault `number` of the plan now, unless it is recorded as injected already."""

        def claim() -> bool:
            return chaos_files.claim(self.run, number, step, self.attempt)

        if fault.kind == "fill_disk":
            _refuse(claim)
        elif claim():
            _ACTIONS[fault.kind](self, fault)

    def _die(self, fault: Fault) -> None:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def _kill_agent(self, fault: Fault) -> None:
        """The agent forked this process, which dies with it."""
        os.kill(os.getppid(), signal.SIGKILL)
        self._stay_away(fault)

    def _stop(self, fault: Fault) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def _delay(self, fault: Fault) -> None:
        self.share = fault.amount / 100

    def _stay_away(self, fault: Fault) -> None:
        while True:
            time.sleep(60.0)

    def _flip(self, fault: Fault) -> None:
        """Flip the middle byte of one rank's part of the newest checkpoint, then die so that it is read."""
        checkpoints = CheckpointStore(self.run)
        folder = checkpoints.folder(checkpoints.steps()[0])
        files = sorted(folder.glob("rank*.bin"))
        path = files[fault.rank % len(files)]
        with path.open("r+b") as file:
            at = path.stat().st_size // 2
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 0xFF]))
        self._die(fault)

    def _preempt(self, fault: Fault) -> None:
        """Signal every process of the job, as a cluster does to reclaim nodes; the supervisor leads the session."""
        os.killpg(os.getsid(0), signal.SIGTERM)


_ACTIONS: dict[str, Callable[[FaultInjector, Fault], None]] = {
    "kill_worker": FaultInjector._die,
    "kill_agent": FaultInjector._kill_agent,
    "stop": FaultInjector._stop,
    "delay": FaultInjector._delay,
    "drop_collective": FaultInjector._stay_away,
    "flip_byte": FaultInjector._flip,
    "preempt": FaultInjector._preempt,
}


def _refuse(claim: Callable[[], bool]) -> None:
    """Let the disk run full halfway through the next part of a checkpoint that this rank writes.

    Once half of its first block is written, the file's descriptor is replaced by one of /dev/full, for which write(2)
    fails with ENOSPC: the writer and its error handling are the real ones, and no other file is touched.
    """
    real: Callable[[Path, Iterable[bytes | memoryview]], Any] = checkpoint_saver.write

    def write(path: Path, parts: Iterable[bytes | memoryview]) -> Any:
        checkpoint_saver.write = real
        return real(path, _half(path, parts) if claim() else parts)

    checkpoint_saver.write = write


def _half(path: Path, parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the parts, replacing the descriptor of `path` after the first half block; `path` must be open by then."""
    every = iter(parts)
    first = memoryview(next(every))
    yield first[: len(first) // 2]
    full = os.open(FULL, os.O_WRONLY)
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and os.readlink(entry) == str(path.resolve()):
            os.dup2(full, int(entry.name), inheritable=False)
    os.close(full)
    yield first[len(first) // 2 :]
    yield from every
