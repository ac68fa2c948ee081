"""A rank's checkpoints, and their reports: events in the run's log, and messages of rank 0 on stdout.

Steps are counted from 0. An attempt is the work of the ranks from one launch to their end.
"""

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
    """Saves and loads checkpoints of a training. All methods are collective.

    Does nothing for a training without state, which always starts from the beginning."""

    def __init__(
        self,
        folder: Path,
        job: Job,
        ranks: Ranks,
        training: Training,
        events: EventLogWriter,
        say: Callable[[str], object],
    ) -> None:
        """`folder`: the run's folder; `events`: writes to this rank's event log; `say`: prints a message.

        Raises `BadJob` if the job saves checkpoints of a training without state.
        """
        self.is_rank_0, self.events, self.say = ranks.rank == 0, events, say
        # The wait for copies of the state is in the middle of a step, not between steps as in `_log_stall`.
        self.saver = (
            Saver(folder, job, ranks, training, on_joined=events.saved) if isinstance(training, Stateful) else None
        )
        if self.saver is None and job.checkpoint.interval:
            raise BadJob(
                f"interval = {job.checkpoint.interval} at $.checkpoint, but workload {job.workload!r} has no state to "
                "save.",
                "Set interval = 0.",
            )

    def resume(self) -> int:
        """Load the last good checkpoint, if there is one; return the step with which training continues, 0 without one.

        Damaged checkpoints that were passed over are reported.
        """
        if self.saver is None:
            return 0
        step = self.saver.resume()
        reported = self._report_faults()
        if step or reported:
            self.events.loaded(self.saver.loading_ns, step)
            self.say(f"resuming from the checkpoint after step {step}\n" if step else "no good checkpoint was found\n")
        return step

    def due(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        return self.saver is not None and self.saver.is_due(step)

    def after(self, step: int) -> None:
        """Save a checkpoint if one is due after this step."""
        if self.saver is not None:
            self._log_stall(step, lambda saver: saver.save_if_due(step))

    def leave(self, step: int) -> None:
        """Save the state after `step`, before the rank leaves; it is on disk when this returns."""
        if self.saver is not None:
            self._log_stall(step, lambda saver: saver.save_now(step))

    def finish_writing(self, step: int) -> None:
        """Wait for pending writes, without saving the state after `step`, the last one."""
        if self.saver is not None:
            self._log_stall(step, lambda saver: saver.close())

    def close(self, step: int) -> None:
        """Wait for pending writes. `step`: the job's last step, whose state is saved too if the job saves any."""
        if self.saver is not None:
            if self.saver.saves:
                self.leave(step)
            self.finish_writing(step)

    def _log_stall(self, step: int, save: Callable[[Saver], None]) -> None:
        """Call `save` with the saver; log for how many ns that stalled training after `step`, and faults in
        checkpoints."""
        assert self.saver is not None  # noqa: S101 - checked by the callers
        stalled_before_ns = self.saver.stalled_ns
        save(self.saver)
        if stalled_ns := self.saver.stalled_ns - stalled_before_ns:
            self.events.saved(stalled_ns, step)
        self._report_faults()

    def _report_faults(self) -> bool:
        """Report faults in checkpoints that the saver has detected since the last call; return whether there were any.

        They concern the whole job, so only rank 0 logs them as events.
        """
        notices = self.saver.take_notices() if self.saver is not None else []
        for notice in notices:
            if self.is_rank_0:
                self.events.fault(notice.kind, notice.message, notice.rank, notice.step)
            self.say(f"{notice.message}\n")
        return bool(notices)


def attempt(folder: Path) -> int:
    """The number of earlier attempts of the run in `folder`.

    It is the larger of the launcher's count, which restarts from 0 for a resumed run, and of the attempts in the
    samples of rank 0. Call it before any rank writes samples.
    """
    launcher_count = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    path = folder / "samples" / "rank0.jsonl"
    sample_lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return max(
        [launcher_count, *(sample.attempt + 1 for sample in map(_decode_complete_sample, sample_lines) if sample)]
    )


def _decode_complete_sample(line: bytes) -> Sample | None:
    """Decode a line of a sample file; None if it is cut off or unreadable."""
    try:
        return decode_sample(line) if line.endswith(b"\n") else None
    except UNREADABLE:
        return None


def drop_partial_line(path: Path) -> None:
    """Cut off the partial line that a killed rank left at the end of its samples, so that lines can be appended."""
    if path.exists():
        data = path.read_bytes()
        complete_bytes = data.rfind(b"\n") + 1
        if complete_bytes < len(data):
            os.truncate(path, complete_bytes)
