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
    """Return a callable that a rank calls before each step; None in a run without a fault plan."""
    plan = chaos_files.read_plan(run)
    return None if plan is None else FaultInjector(run, plan, job, ranks, attempt)


class FaultInjector:
    """Injects faults; call it with the number of each step before it begins, outside the timed region."""

    def __init__(self, run: Path, plan: FaultPlan, job: Job, ranks: Ranks, attempt: int) -> None:
        """`run`: the run's folder; `ranks`: the process's rank and its group; `attempt`: number of earlier attempts.
        Faults that an earlier attempt injected are left out."""
        self.run, self.job, self.ranks, self.attempt = run, job, ranks, attempt
        injected = chaos_files.injected_faults(run)
        self.pending = {
            number: fault
            for number, fault in enumerate(plan.fault)
            if number not in injected and self._is_for_this_rank(fault)
        }
        """Faults that this rank has still to inject, by index in the plan."""
        self.delay_share = 0.0
        """Sleep before each step, as a fraction of the recent step time; 0 for none."""
        self._step_seconds: list[float] = []
        """Times of the recent steps, oldest first."""
        self._step_began_s = 0.0
        """When the last step began (perf_counter); 0 before the first."""

    def _is_for_this_rank(self, fault: Fault) -> bool:
        """Whether this rank injects the fault: the first rank of a node for the node, rank 0 for the job. Rank and node
        numbers are those of the plan only while all nodes are present."""
        if fault.node >= 0:
            nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
            return nodes == self.job.recovery.nodes and self.ranks.rank == self.job.ranks_on(fault.node)
        return self.ranks.rank == max(fault.rank, 0)

    def __call__(self, step: int) -> None:
        """Inject the faults that are due before `step`, and sleep if one of them was a delay."""
        if self._step_began_s:
            self._step_seconds = [*self._step_seconds, time.perf_counter() - self._step_began_s][-_RECENT:]
        for number, fault in list(self.pending.items()):
            if step >= fault.step and self._is_possible(fault, step):
                del self.pending[number]
                self._inject(number, fault, step)
        if self.delay_share and self._step_seconds:
            time.sleep(self.delay_share * median(self._step_seconds))
        self._step_began_s = time.perf_counter()

    def _is_possible(self, fault: Fault, step: int) -> bool:
        """Whether there is a checkpoint to damage or, for a full disk, one is due after `step`."""
        if fault.kind == "flip_byte":
            return bool(CheckpointStore(self.run).steps())
        checkpoint_interval = self.job.checkpoint.interval
        return fault.kind != "fill_disk" or (step + 1) % checkpoint_interval == 0

    def _inject(self, number: int, fault: Fault, step: int) -> None:
        """Inject fault `number` of the plan now, unless it is recorded as injected already."""

        def claim() -> bool:
            """Record the injection; False if another process has recorded it before."""
            return chaos_files.claim_injection(self.run, number, step, self.attempt)

        if fault.kind == "fill_disk":
            _fill_disk(claim)
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
        self.delay_share = fault.amount / 100

    def _stay_away(self, fault: Fault) -> None:
        while True:
            time.sleep(60.0)

    def _flip(self, fault: Fault) -> None:
        """Invert the middle byte of the file of one rank (`fault.rank`) in the newest checkpoint, then die, so that the
        restarted ranks read it."""
        checkpoints = CheckpointStore(self.run)
        folder = checkpoints.folder(checkpoints.steps()[0])
        files = sorted(folder.glob("rank*.bin"), key=lambda file: (len(file.name), file.name))  # in order of rank
        path = files[fault.rank % len(files)]
        with path.open("r+b") as file:
            middle = path.stat().st_size // 2
            file.seek(middle)
            (byte,) = file.read(1)
            file.seek(middle)
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


def _fill_disk(claim: Callable[[], bool]) -> None:
    """Let the disk run full halfway through the next part of a checkpoint that this rank writes.

    Once half of its first block is written, the file's descriptor is replaced by one of /dev/full, for which write(2)
    fails with ENOSPC: the writer and its error handling are the real ones, and no other file is touched. `claim`:
    records the fault as injected; False if it has been already.
    """
    original_write: Callable[[Path, Iterable[bytes | memoryview]], Any] = checkpoint_saver.write

    def write(path: Path, parts: Iterable[bytes | memoryview]) -> Any:
        checkpoint_saver.write = original_write
        return original_write(path, _swap_descriptor_halfway(path, parts) if claim() else parts)

    checkpoint_saver.write = write


def _swap_descriptor_halfway(path: Path, parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the parts, replacing the descriptor of `path` after the first half block; `path` must be open by then."""
    remaining_parts = iter(parts)
    first_block = memoryview(next(remaining_parts))
    yield first_block[: len(first_block) // 2]
    full_disk = os.open(FULL, os.O_WRONLY)
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and os.readlink(entry) == str(path.resolve()):
            os.dup2(full_disk, int(entry.name), inheritable=False)
    os.close(full_disk)
    yield first_block[len(first_block) // 2 :]
    yield from remaining_parts
