"""The `Workload` that trains a recommender to predict clicks."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.cost import Operation
from trainyard.job import Job
from trainyard.train.step.outcome import Training
from trainyard.workloads.ops import recommender_ops


class Recommender:
    """Click prediction with DLRM. `params`: the parts of a job it uses. Only `build` imports torch."""

    name = "recommender"
    params = ("sizes", "layout.dp_replicate", "layout.dp_shard", "layout.zero", "recipe")
    unit = "samples"

    def build(self, job: Job, vendor: str) -> Training:
        """Builds the training in a rank of a started job. Raises `BadJob` if the job cannot be trained."""
        from trainyard.train import process_group
        from trainyard.train.recommender.recommender_task import Clicks, Predict
        from trainyard.train.step.trainer import Trainer

        sizes = recommender_ops.check(job)
        flops = recommender_ops.model_flops(job)
        return Trainer(job, process_group.find_ranks(vendor), Predict(job, sizes), Clicks(job, sizes), flops)

    def expect(self, job: Job) -> Sequence[Operation]:
        """The arithmetic of one step on one rank. Raises `BadJob` like `build`."""
        return recommender_ops.operations(job)

    def weights(self, job: Job) -> int:
        """Parameters of a rank before data parallelism shards them, as the mean over ranks. Raises `BadJob` like
        `build`."""
        return recommender_ops.weights(job)
