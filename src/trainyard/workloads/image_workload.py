"""The base class of workloads that train on images or on latents of images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from trainyard.cost import Operation
from trainyard.job import Job
from trainyard.recipe import Recipe
from trainyard.train.step.outcome import Training
from trainyard.workloads.ops.tally import Tally


class ImageOps(Protocol):
    """The functions of `vision_ops` and `diffusion_ops`. The sizes are those of a model family."""

    def check(self, job: Job) -> Any: ...

    def tally(self, sizes: Any, recipe: Recipe, tp: int = 1) -> Tally: ...


class ImageWorkload(ABC):
    """Base of a `Workload` on images. `params`: the parts of a job it uses; `unit`: a sample, in the plural; `ops`: the
    module that counts the arithmetic of its models. A subclass defines `name`, `ops` and `task_and_samples`. Only
    `build` imports torch."""

    params = ("sizes", "layout.dp_replicate", "layout.dp_shard", "layout.zero", "layout.tp", "recipe")
    unit = "images"
    ops: ImageOps

    def build(self, job: Job, vendor: str) -> Training:
        """Builds the training in a rank of a started job. Raises `BadJob` if the job cannot be trained."""
        from trainyard.train import process_group
        from trainyard.train.step.trainer import Trainer

        sizes = self.ops.check(job)
        task, samples = self.task_and_samples(job, sizes)
        return Trainer(job, process_group.find_ranks(vendor), task, samples, self.model_flops(job))

    @abstractmethod
    def task_and_samples(self, job: Job, sizes: Any) -> tuple[Any, Any]:
        """The `Task` and the `Samples` of a model of these sizes."""

    def expect(self, job: Job) -> Sequence[Operation]:
        """The arithmetic of one step on one rank. Raises `BadJob` like `build`."""
        return self._tally(job, job.layout.tp).operations(job)

    def model_flops(self, job: Job) -> int:
        """Model FLOPs of a step over all ranks, for MFU. Raises `BadJob` like `build`."""
        return self._tally(job).model_flops(job)

    def weights(self, job: Job) -> int:
        """Parameters of a rank before data parallelism shards them, as the mean over ranks. Raises `BadJob` like
        `build`."""
        return self._tally(job, job.layout.tp).local_parameters

    def _tally(self, job: Job, tp: int = 1) -> Tally:
        return self.ops.tally(self.ops.check(job), job.recipe, tp)
