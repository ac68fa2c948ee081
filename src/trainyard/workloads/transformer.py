"""The `Workload` that trains a decoder-only transformer on real text."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.cost import Operation
from trainyard.job import Job
from trainyard.train.step.outcome import Training
from trainyard.workloads.ops import transformer_ops


class Transformer:
    """`params`: the parts of a job it obeys. torch is needed, and loaded, by `build` alone."""

    name = "transformer"
    params = ("model", "layout.dp_replicate", "layout.dp_shard", "recipe")
    unit = "tokens"

    def build(self, job: Job, vendor: str) -> Training:
        """In a rank of a started job. Raises `BadJob` for what cannot be trained."""
        from trainyard.train import process_group
        from trainyard.train.model.language_task import Bytes, Language
        from trainyard.train.step.trainer import Trainer

        transformer_ops.check(job)
        return Trainer(job, process_group.find(vendor), Language(job), Bytes(job), transformer_ops.model_flops(job))

    def expect(self, job: Job) -> Sequence[Operation]:
        """The arithmetic of one step on one rank. Raises `BadJob` likewise."""
        return transformer_ops.operations(job)

    def weights(self, job: Job) -> int:
        """Of a rank before data parallelism divides them; the mean over stages and parts. Raises `BadJob` likewise."""
        transformer_ops.check(job)
        layout = job.layout
        return transformer_ops.parameters(job.decoder, job.recipe.seq_len) // (layout.tp * layout.pp)
