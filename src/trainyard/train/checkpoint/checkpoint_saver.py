"""Saves the state of a training while it continues; `resume_checkpoint.py` loads it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
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
from trainyard.train.checkpoint.save_plan import WritePlan, agree_on_plan, stream_contents
from trainyard.train.checkpoint.staging import Staging, copy_stream
from trainyard.train.checkpoint.training_state import SkipsInitialWeights, Stateful
from trainyard.train.process_group import Ranks
from trainyard.train.step.profiler_span import span


class _Failure(NamedTuple):
    """Why a rank could not write its file. `full`: its disk has no space left. `message`: names the rank."""

    full: bool
    rank: int
    message: str


class Saver:
    """Saves one training run into its folder. Collective: every rank constructs it and calls each method.

    An asynchronous save copies the state to a host buffer (staging) while the next step computes: each optimizer waits
    for the copies before its step changes the state.

    The time that a step waits is inside the spans `checkpoint.save` and `checkpoint.load`; `stalled_ns` and
    `loading_ns` are their sums. The rest runs in a separate thread, so that profiles contain only the collectives of
    the training itself. All hosts must share the folder.
    """

    def __init__(
        self,
        run: Path,
        job: Job,
        ranks: Ranks,
        training: Stateful,
        on_joined: Callable[[int, int], object] = lambda stalled_ns, step: None,
    ) -> None:
        """Prepares the saves of `training` into the run's folder `run`; a random name of this attempt is agreed on by
        all ranks. `on_joined`: called with the ns for which an optimizer waited for the copies of a state, and that
        state's step."""
        self.job, self.ranks, self.training = job, ranks, training
        self.stalled_ns = 0
        self.loading_ns = 0
        self.saved = -1
        """The last step whose state is on disk or being written; -1 if there is none."""
        self._group = CheckpointGroup(ranks)
        self._store = CheckpointStore(run, self._group.broadcast(secrets.token_hex(4)))
        self._background = Background()
        self._on_joined = on_joined
        self._staging = Staging(copy_stream(ranks.device))
        self._staged: tuple[int, Future[None]] | None = None
        """The step whose state is being copied, and a future that completes once all copies are launched. None if
        training may change the state."""
        self._plan: WritePlan | None = None
        self._planned: object = None
        """(name, shape, dtype) of each tensor that `_plan` was made for."""
        self._writing: Future[None] | None = None
        """The save in progress, complete once its checkpoint is on disk."""
        self._notices: SimpleQueue[Notice] = SimpleQueue()
        """Faults of the background thread that `take_notices` has not returned yet."""
        for optimizer in training.optimizers():
            optimizer.register_step_pre_hook(lambda *_: self.join_staging())

    def resume(self) -> int:
        """Loads the newest good checkpoint and returns the step at which training continues; 0 without a checkpoint.

        Raises the errors of `Resume.load_last_good`.
        """
        began = time.perf_counter_ns()
        with span("checkpoint.load"):
            resume = Resume(
                job=self.job,
                ranks=self.ranks,
                training=self.training,
                group=self._group,
                store=self._store,
                notices=self._notices,
            )
            self.saved = resume.load_last_good()
        self.loading_ns += time.perf_counter_ns() - began
        return self.saved + 1

    @property
    def saves(self) -> bool:
        """Whether the job saves any checkpoint."""
        return self.job.checkpoint.interval > 0

    def is_due(self, step: int) -> bool:
        """Whether the job saves a checkpoint after this step."""
        return self.saves and (step + 1) % self.job.checkpoint.interval == 0

    def save_if_due(self, step: int) -> None:
        """Saves the state after `step` if it is due."""
        if self.is_due(step):
            self._save(step, wait=self.job.checkpoint.mode == "sync")

    def save_now(self, step: int) -> None:
        """Saves the state after `step`; it is on disk when this returns."""
        self._save(step, wait=True)

    def close(self) -> None:
        """Waits for the checkpoint being written, adds the time waited to `stalled_ns`, and ends the background thread.
        If the save failed, raises its error afterwards."""
        writing = self._writing
        if writing is None:
            self._background.close()
            return
        began = time.perf_counter_ns()
        try:
            with span("checkpoint.save"):
                self._wait()
        finally:
            self.stalled_ns += time.perf_counter_ns() - began
            if writing.done():  # not if a signal interrupted the wait: the thread may be busy for long
                self._background.close()

    def take_notices(self) -> list[Notice]:
        """Returns and removes the faults since the last call: the same on every rank, with rank 0's message."""
        notices: list[Notice] = []
        while not self._notices.empty():
            notices.append(self._notices.get())
        return notices

    # Saving

    def _save(self, step: int, wait: bool) -> None:
        """Saves the state after `step`, once the previous save has ended. With `wait` it returns when the checkpoint is
        on disk; else at once, and `join_staging` must be called before the state changes. The time spent here is added
        to `stalled_ns`, also if it raises the error of a save."""
        began = time.perf_counter_ns()
        try:
            with span("checkpoint.save"):
                self._wait()  # one at a time
                if step != self.saved:
                    self._begin(step, stages=not wait)
                if wait:
                    self._wait()
        finally:
            self.stalled_ns += time.perf_counter_ns() - began

    def _begin(self, step: int, stages: bool) -> None:
        """Starts a save of the state after `step` in the background thread, and sets `saved` and `_writing`. If it
        `stages`, the state may change after `join_staging`; else once the checkpoint is on disk."""
        device = self.ranks.device
        tensors = training_state.weights(self.training) | training_state.optimizer_state(self.training)
        tensors |= training_state.generators(self.ranks.rank, device)
        staged: Future[None] | None = None
        if stages:
            tensors = training_state.copy_buffers(tensors, self.training)
            self._staging.stream.follow_training()
            staged = Future()
        elif device.type == "cuda":
            torch.cuda.synchronize(device)
        scalars = dict(self.training.numbers())

        def work() -> None:
            """Performs the save; completes `staged` in any case, so that an error cannot block the training."""
            try:
                self._write_and_commit(step, tensors, scalars, staged)
            finally:
                if staged is not None and not staged.done():
                    staged.set_result(None)

        self.saved, self._staged = step, (step, staged) if staged is not None else None
        self._writing = self._background.do(work)

    def join_staging(self) -> None:
        """Lets training change the state: waits until the copies of the state being saved, if any, are launched, and
        orders the training's later work on the device after them. Optimizers call it before each step."""
        if self._staged is None:
            return
        (step, staged), self._staged = self._staged, None
        began = time.perf_counter_ns()
        with span("checkpoint.save"):
            staged.result()
            self._staging.stream.hold_training()
        stalled_ns = time.perf_counter_ns() - began
        self.stalled_ns += stalled_ns
        self._on_joined(stalled_ns, step)

    def _wait(self) -> None:
        """Waits for the save in progress, if any, and raises its error."""
        if self._writing is not None:
            writing, self._writing, self._staged = self._writing, None, None
            writing.result()

    def _write_and_commit(
        self, step: int, tensors: Mapping[str, Tensor], scalars: Mapping[str, float], staged: Future[None] | None
    ) -> None:
        """Writes this rank's file and, on rank 0, completes or removes the checkpoint. Runs in the background thread;
        collective.

        `tensors`, `scalars`: the state by name. `staged` is completed once the copies of the tensors are launched; if
        it is None, the tensors are written without a copy, and the state may change when this returns. A full disk
        becomes a notice; raises `EnvironmentFailed` for other failures.
        """
        plan = self._plan_for(tensors)
        outcome: File | _Failure
        try:
            if staged is not None:
                self._staging.launch(plan, tensors)
                staged.set_result(None)
                contents = [self._staging.contents(plan)]
            else:
                contents = stream_contents(plan, tensors)
            folder = self._store.unfinished_folder(step)
            folder.mkdir(parents=True, exist_ok=True)
            fault_point("checkpoint.part")
            outcome = write(folder / plan.file, contents)
        except Exception as error:
            outcome = _Failure(full=is_full(error), rank=self.ranks.rank, message=f"rank {self.ranks.rank}: {error}")
        outcomes = self._group.gather(outcome)
        failure = self._group.broadcast(self._commit(step, plan, outcomes, scalars) if self._group.is_rank_0 else None)
        if failure is None:
            return
        self.saved = -1
        if not failure.full:
            raise EnvironmentFailed(f"the checkpoint after step {step + 1} could not be written: {failure.message}.")
        message = f"the disk has no space for the checkpoint after step {step + 1}: {failure.message}"
        self._notices.put(Notice(kind="disk_full", step=step, message=message, rank=failure.rank))

    def _plan_for(self, tensors: Mapping[str, Tensor]) -> WritePlan:
        """The plan of the previous save, or a new one if name, shape or dtype of a tensor of any rank has changed
        since. Collective. `tensors`: this rank's state by name."""
        layout = [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]
        if self._group.any(layout != self._planned):
            self._plan, self._planned = agree_on_plan(tensors, self._group), layout
        assert self._plan is not None  # noqa: S101 - set above
        return self._plan

    def _commit(
        self, step: int, plan: WritePlan, outcomes: list[File | _Failure], scalars: Mapping[str, float]
    ) -> _Failure | None:
        """Completes the checkpoint of `step` by writing its manifest, or removes its files if a rank failed. Rank 0
        only.

        `outcomes`: for each rank in order, size and digest of its file, or the reason why it could not be written.
        `scalars`: scalar state by name. Removes checkpoints beyond the number that the job keeps. Returns None, or the
        most serious failure: one other than a full disk, if there is any.
        """
        failures = [outcome for outcome in outcomes if isinstance(outcome, _Failure)]
        if not failures:
            manifest = Manifest(
                step=step,
                ranks=self.ranks.world,
                saved=datetime.now(UTC).isoformat(timespec="milliseconds"),
                job=self.job,
                files={f"rank{rank}.bin": file for rank, file in enumerate(outcomes) if isinstance(file, File)},
                tensors=dict(plan.table),  # dtype, shape and pieces of each tensor, which rank 0's plan has
                numbers=dict(scalars),
                digests=dict(self.training.digests()) if isinstance(self.training, SkipsInitialWeights) else {},
            )
            try:
                self._store.commit(manifest)
                self._store.retain(self.job.checkpoint.keep_latest_k)
                return None
            except OSError as error:
                failures = [_Failure(full=is_full(error), rank=0, message=f"rank 0: {error}")]
        self._store.drop(step)
        return next((failure for failure in failures if not failure.full), failures[0])
