"""A rank's checkpoints, and what is told of them: in the run's life, and by rank 0 on stdout."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trainyard.errors import BadJob
from trainyard.formats.decoding import UNREADABLE
from trainyard.job import Job
from trainyard.launch.supervisor.event_log import EventLogWriter
from trainyard.record import Sample
from trainyard.store.run_folder import decode_sample
from trainyard.train.checkpoint.checkpoint_saver import Saver
from trainyard.train.checkpoint.training_state import Stateful
from trainyard.train.process_group import Ranks
from trainyard.train.step.outcome import Training


class RunCheckpoints:
    """All methods are collective. A training that has no state to offer is not kept, and begins at its beginning."""

    def __init__(
        self,
        folder: Path,
        job: Job,
        ranks: Ranks,
        training: Training,
        events: EventLogWriter,
        say: Callable[[str], object],
    ) -> None:
        self.first, self.events, self.say = ranks.rank == 0, events, say
        self.saver = Saver(folder, job, ranks, training) if isinstance(training, Stateful) else None
        if self.saver is None and job.checkpoint.every:
            raise BadJob(
                f"every = {job.checkpoint.every} at $.checkpoint, but a training of {job.workload!r} offers no state.",
                "Use every = 0.",
            )

    def resume(self) -> int:
        """The step that training goes on with, from the last good checkpoint where there is one."""
        if self.saver is None:
            return 0
        step = self.saver.resume()
        told = self._tell()
        if step or told:
            self.events.loaded(self.saver.loading_ns, step)
            self.say(f"going on from the checkpoint after step {step}\n" if step else "no checkpoint is good\n")
        return step

    def due(self, step: int) -> bool:
        """Whether the job says that the state after this step is saved."""
        return self.saver is not None and self.saver.due(step)

    def after(self, step: int) -> None:
        """Saves when the job says so."""
        if self.saver is not None:
            self._stalled(step, lambda saver: saver.after(step))

    def leave(self, step: int) -> None:
        """The state after `step` is on the disk when this returns."""
        if self.saver is not None:
            self._stalled(step, lambda saver: saver.save_now(step))

    def close(self, step: int) -> None:
        """Waits for what is being written. `step`: the last of the job, whose state is saved too, where any is."""
        if self.saver is not None:
            if self.saver.saves:
                self.leave(step)
            self._stalled(step, lambda saver: saver.close())

    def _stalled(self, step: int, do: Callable[[Saver], None]) -> None:
        assert self.saver is not None  # noqa: S101 - those who call have looked
        before = self.saver.stalled_ns
        do(self.saver)
        if stalled := self.saver.stalled_ns - before:
            self.events.saved(stalled, step)
        self._tell()

    def _tell(self) -> bool:
        """Whether there was a fault. It is the whole job's: one rank tells of it."""
        notices = self.saver.notices() if self.saver is not None else []
        for notice in notices:
            if self.first:
                self.events.fault(notice.kind, notice.says, notice.rank, notice.step)
            self.say(f"{notice.says}\n")
        return bool(notices)


def attempt(folder: Path) -> int:
    """How often the job had been started before: as the launcher counts, and beyond what its samples say, since a run
    that is gone on with later is counted from 0 again. To be asked before any rank writes."""
    said = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    path = folder / "samples" / "rank0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return max([said, *(sample.attempt + 1 for sample in map(_sample, lines) if sample)])


def _sample(line: bytes) -> Sample | None:
    try:
        return decode_sample(line) if line.endswith(b"\n") else None
    except UNREADABLE:
        return None


def mend(path: Path) -> None:
    """Cuts off the half line that a killed rank left at the end of its samples, so that more can follow."""
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
