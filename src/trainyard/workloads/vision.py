"""The `Workload` that trains a vision transformer or a residual network to tell pictures apart."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.cost import Operation
from trainyard.job import Job
from trainyard.train.step.outcome import Training
from trainyard.workloads.ops import vision_ops


class Vision:
    """`params`: the parts of a job it obeys. torch is needed, and loaded, by `build` alone."""

    name = "vision"
    params = ("sizes", "layout.dp_replicate", "layout.dp_shard", "layout.zero", "layout.tp", "recipe")
    unit = "images"

    def build(self, job: Job, vendor: str) -> Training:
        """In a rank of a started job. Raises `BadJob` for what cannot be trained."""
        from trainyard.train import process_group
        from trainyard.train.step.trainer import Trainer
        from trainyard.train.vision.vision_task import Classify, Labelled

        sizes = vision_ops.check(job)
        return Trainer(
            job, process_group.find(vendor), Classify(job, sizes), Labelled(job, sizes), vision_ops.model_flops(job)
        )

    def expect(self, job: Job) -> Sequence[Operation]:
        """The arithmetic of one step on one rank. Raises `BadJob` likewise."""
        return vision_ops.operations(job)

    def weights(self, job: Job) -> int:
        """Of a rank before data parallelism divides them; the mean over stages and parts. Raises `BadJob` likewise."""
        return vision_ops.tally(vision_ops.check(job), job.recipe, job.layout.tp).here
