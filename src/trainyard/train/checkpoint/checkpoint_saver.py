"""Saves the state of a training while it continues; `resume_checkpoint.py` loads it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import torch
from torch import Tensor

from trainyard.errors import EnvironmentFailed
from trainyard.fault_points import fault_point
from trainyard.job import Job
from trainyard.train.checkpoint import training_state
from trainyard.train.checkpoint.background_thread import Background
from trainyard.train.checkpoint.checkpoint_store import CheckpointStore, is_full, write
from trainyard.train.checkpoint.manifest import File, Manifest
from trainyard.train.checkpoint.rank_group import CheckpointGroup
from trainyard.train.checkpoint.resume_checkpoint import Notice, Resume
from trainyard.train.checkpoint.save_plan import Staging, WritePlan, agree_on_plan, straight
from trainyard.train.checkpoint.training_state import Stateful
from trainyard.train.process_group import Ranks
from trainyard.train.step.profiler_span import span


class _Failure(NamedTuple):
    full: bool
    rank: int
    says: str


class Saver:
    """Of one training in the folder of one run; made, and each method called, by all ranks alike.

    What a step waits for is inside the spans `checkpoint.save` and `checkpoint.load`; `stalled_ns` and `loading_ns` are
    their sums. All else is done in a thread of its own, so that a profile has no collectives that training did not ask
    for. The folder must be the same on every rank's host.
    """

    def __init__(self, run: Path, job: Job, ranks: Ranks, training: Stateful) -> None:
        self.job, self.ranks, self.training = job, ranks, training
        self.stalled_ns = 0
        self.loading_ns = 0
        self.saved = -1
        """The last step whose state is on the disk, or on its way there."""
        self._group = CheckpointGroup(ranks)
        self._store = CheckpointStore(run, self._group.broadcast(secrets.token_hex(4)))
        self._background = Background()
        self._staging = Staging()
        self._plan: WritePlan | None = None
        self._planned: object = None
        self._writing: Future[None] | None = None
        self._notices: SimpleQueue[Notice] = SimpleQueue()

    def resume(self) -> int:
        """Loads the last good checkpoint; returns the step with which training continues, 0 without a checkpoint.

        Raises as `Resume.load_last_good` does.
        """
        began = time.perf_counter_ns()
        with span("checkpoint.load"):
            resume = Resume(self.job, self.ranks, self.training, self._group, self._store, self._notices)
            self.saved = resume.load_last_good()
        self.loading_ns += time.perf_counter_ns() - began
        return self.saved + 1

    @property
    def saves(self) -> bool:
        """Whether the job says that any state is saved."""
        return self.job.checkpoint.every > 0

    def due(self, step: int) -> bool:
        """Whether the job says that the state after this step is saved."""
        return self.saves and (step + 1) % self.job.checkpoint.every == 0

    def after(self, step: int) -> None:
        """Saves if it is due."""
        if self.due(step):
            self._save(step, wait=self.job.checkpoint.mode == "sync")

    def save_now(self, step: int) -> None:
        """The state after `step`, on the disk when this returns."""
        self._save(step, wait=True)

    def close(self) -> None:
        """Waits for what is being written."""
        if self._writing is not None:
            began = time.perf_counter_ns()
            with span("checkpoint.save"):
                self._wait()
            self.stalled_ns += time.perf_counter_ns() - began
        self._background.close()

    def notices(self) -> list[Notice]:
        """What went wrong since this was last asked; the same faults on every rank, as the first rank words them."""
        found: list[Notice] = []
        while not self._notices.empty():
            found.append(self._notices.get())
        return found

    # Saving

    def _save(self, step: int, wait: bool) -> None:
        began = time.perf_counter_ns()
        with span("checkpoint.save"):
            self._wait()  # one at a time
            if step != self.saved:
                self._begin(step, staged=not wait)
            if wait:
                self._wait()
        self.stalled_ns += time.perf_counter_ns() - began

    def _begin(self, step: int, staged: bool) -> None:
        """Returns when the state may change: it is staged, or on the disk."""
        device = self.ranks.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        tensors = training_state.weights(self.training) | training_state.of_optimizers(self.training)
        tensors |= training_state.generators(self.ranks.rank, device)
        numbers = dict(self.training.numbers())
        free: Future[None] = Future()

        def work() -> None:
            try:
                self._put(step, tensors, numbers, free if staged else None)
            finally:
                if not free.done():
                    free.set_result(None)

        self.saved = step
        self._writing = self._background.do(work)
        free.result()

    def _wait(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _put(
        self, step: int, tensors: Mapping[str, Tensor], numbers: Mapping[str, float], free: Future[None] | None
    ) -> None:
        """All of a save, in the thread. `free` is told when the state may change; without it, at the end."""
        plan = self._agreed(tensors)
        told: File | _Failure
        try:
            if free is not None:
                image = [self._staging.fill(plan, tensors, self.ranks.device)]
                free.set_result(None)
            else:
                image = straight(plan, tensors)
            part = self._store.part(step)
            part.mkdir(parents=True, exist_ok=True)
            fault_point("checkpoint.part")
            told = write(part / plan.file, image)
        except Exception as error:
            told = _Failure(is_full(error), self.ranks.rank, f"rank {self.ranks.rank}: {error}")
        every = self._group.gather(told)
        failure = self._group.broadcast(self._commit(step, plan, every, numbers) if self._group.first else None)
        if failure is None:
            return
        self.saved = -1
        if not failure.full:
            raise EnvironmentFailed(f"the checkpoint after step {step + 1} could not be written: {failure.says}.")
        says = f"the checkpoint after step {step + 1} found no room: {failure.says}"
        self._notices.put(Notice("disk_full", step, says, failure.rank))

    def _agreed(self, tensors: Mapping[str, Tensor]) -> WritePlan:
        """The plan of the save before, while all ranks have what they had then."""
        now = [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]
        if self._group.any(now != self._planned):
            self._plan, self._planned = agree_on_plan(tensors, self._group), now
        assert self._plan is not None  # noqa: S101 - it was just made
        return self._plan

    def _commit(
        self, step: int, plan: WritePlan, told: list[File | _Failure], numbers: Mapping[str, float]
    ) -> _Failure | None:
        """On the first rank: what all have written becomes a checkpoint, or nothing is left of it."""
        failures = [said for said in told if isinstance(said, _Failure)]
        if not failures:
            manifest = Manifest(
                step=step,
                ranks=self.ranks.world,
                saved=datetime.now(UTC).isoformat(timespec="milliseconds"),
                job=self.job,
                files={f"rank{rank}.bin": said for rank, said in enumerate(told) if isinstance(said, File)},
                tensors=dict(plan.table),
                numbers=dict(numbers),
            )
            try:
                self._store.commit(manifest)
                self._store.retain(self.job.checkpoint.keep)
                return None
            except OSError as error:
                failures = [_Failure(is_full(error), 0, f"rank 0: {error}")]
        self._store.drop(step)
        return next((failure for failure in failures if not failure.full), failures[0])
