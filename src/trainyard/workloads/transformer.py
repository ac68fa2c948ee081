"""The `Workload` that trains a decoder-only transformer on text."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.cost import Operation
from trainyard.job import Job
from trainyard.train.step.outcome import Training
from trainyard.workloads.ops import transformer_ops


class Transformer:
    """Language modelling on bytes. `params`: the parts of a job it uses. Only `build` imports torch."""

    name = "transformer"
    params = ("model", "layout.dp_replicate", "layout.dp_shard", "recipe")
    unit = "tokens"

    def build(self, job: Job, vendor: str) -> Training:
        """Builds the training in a rank of a started job. Raises `BadJob` if the job cannot be trained."""
        from trainyard.train import process_group
        from trainyard.train.model.language_task import Bytes, Language
        from trainyard.train.step.trainer import Trainer

        transformer_ops.check(job)
        return Trainer(
            job, process_group.find_ranks(vendor), Language(job), Bytes(job), transformer_ops.model_flops(job)
        )

    def expect(self, job: Job) -> Sequence[Operation]:
        """The arithmetic of one step on one rank. Raises `BadJob` like `build`."""
        return transformer_ops.operations(job)

    def weights(self, job: Job) -> int:
        """Parameters of a rank before data parallelism shards them, as the mean over ranks. Raises `BadJob` like
        `build`."""
        transformer_ops.check(job)
        layout = job.layout
        return transformer_ops.parameters(job.decoder, job.recipe.seq_len) // (layout.tp * layout.pp)
