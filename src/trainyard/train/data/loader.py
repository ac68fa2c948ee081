"""A rank's batches, loaded in the training process or prefetched by worker processes."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from functools import partial
from itertools import count
from multiprocessing import get_all_start_methods
from multiprocessing.queues import Queue
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, Dataset

from trainyard.job import Job
from trainyard.pdeathsig import die_with_parent
from trainyard.recipe import Recipe
from trainyard.train.task import Batch, Samples

_WORKERS_ON_ACCELERATORS = 2


class Loader:
    """Call with a step's number to get this rank's samples of the step, on the host.

    A batch is a function of the step alone, so workers do not change it. Steps must be consecutive to benefit from
    prefetching; after a jump (a resumed run) the workers restart from the new step.
    """

    def __init__(self, job: Job, samples: Samples, batch_rank: int, device: torch.device) -> None:
        """Loads the samples of data-parallel rank `batch_rank`: its consecutive share of each global batch.
        `device`: of the training, on which the defaults of the recipe depend. `ahead`: iterator over the workers'
        batches from step `next` on; None before they are started."""
        self.workers = workers(job.recipe, device)
        self.prefetch_factor = job.recipe.prefetch_factor
        self.pins_memory = enabled_on_accelerator(job.recipe.pin_memory, device)
        self.share = _RankShare(samples, job.replica_samples(batch_rank))
        self.ahead: Iterator[Batch] | None = None
        self.next = -1

    def __call__(self, step: int) -> Batch:
        """The rank's batch of a step: from worker processes that load ahead, if there are any. Another step than the
        next one restarts them."""
        if not self.workers:
            return self.share[step].pin() if self.pins_memory else self.share[step]
        if self.ahead is None or step != self.next:
            self.ahead = self._from(step)
        self.next = step + 1
        return next(self.ahead)

    def _from(self, step: int) -> Iterator[Batch]:
        """Starts the worker processes, which end with the iterator. Returns an iterator over their batches of the steps
        from `step` on."""
        sampler: Any = count(step)
        loader = DataLoader(
            self.share,
            batch_size=None,
            sampler=sampler,
            num_workers=self.workers,
            prefetch_factor=self.prefetch_factor,
            pin_memory=self.pins_memory,
            worker_init_fn=partial(_end_with_rank_or_lost_batch, os.getpid()),
            # A child of the rank itself, so that it ends when the rank is killed.
            multiprocessing_context="fork" if "fork" in get_all_start_methods() else None,
        )
        return iter(loader)


def workers(recipe: Recipe, device: torch.device) -> int:
    """The number of worker processes of a rank."""
    if recipe.num_workers is not None:
        return recipe.num_workers
    return _WORKERS_ON_ACCELERATORS if device.type == "cuda" else 0


def enabled_on_accelerator(setting: bool | None, device: torch.device) -> bool:
    """A setting of the recipe that is on by default on accelerators, and off without one."""
    return device.type == "cuda" and setting is not False


def _end_with_rank_or_lost_batch(rank_pid: int, _: int) -> None:
    """Initialises a worker process of the rank whose process id is `rank_pid`.

    The worker is killed when the rank ends, even while it is stopped; PyTorch's own check runs only between batches. It
    also ends if it cannot pass on a batch, as with full shared memory: its queue would report the error and drop the
    batch, and the rank would wait for that batch for ever.
    """
    die_with_parent(rank_pid, signal.SIGKILL)
    setattr(Queue, "_on_queue_feeder_error", staticmethod(_end))  # noqa: B010  the hook has no type


def _end(error: BaseException, batch: object) -> NoReturn:
    """Ends the worker process with the traceback of `error`. PyTorch calls it if a batch cannot be passed on."""
    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(1)


class _RankShare(Dataset[Batch]):
    """A rank's samples; item `step` is its batch of that step."""

    def __init__(self, samples: Samples, indices: range) -> None:
        self.samples, self.indices = samples, indices

    def __getitem__(self, step: int) -> Batch:
        return self.samples.batch(step, self.indices)
