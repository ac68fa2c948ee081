"""One training step: data, forward, backward, clip, optimizer."""

from __future__ import annotations

import torch.distributed as dist

from trainyard.job import Job
from trainyard.train import clip, optimizer, weights
from trainyard.train.outcome import About, Outcome
from trainyard.train.ranks import Ranks
from trainyard.train.span import span
from trainyard.train.spread import Spread
from trainyard.train.task import Batch, Counts, Samples, Task

CLIP = 1.0
"""The global gradient norm is brought down to this."""


class Trainer:
    """A rank's part of the training; a `Training`. Call with the step's number, on all ranks alike.

    The global batch is split first over ranks, then over micro-batches of equal size, and all are averaged:
    any split gives the same loss and gradients, to rounding.
    """

    def __init__(self, job: Job, ranks: Ranks, task: Task, samples: Samples, model_flops: int) -> None:
        self.job = job
        self.ranks = ranks
        self.samples = samples
        self.model_flops = model_flops
        self.spread = Spread(job, ranks, task)
        self.optimizer = optimizer.make(self.spread.parameters, job.recipe)
        self.initial = weights.digest(self.spread.modules, self.spread.meshes)

    def __call__(self, step: int) -> Outcome:
        batch = self._data(step)
        self.optimizer.zero_grad()
        loss = self.spread.forward_backward(batch)
        parameters = self.spread.parameters
        norm = clip.total_norm(parameters, self.spread.meshes)
        clip.scale(parameters, (CLIP / (norm + 1e-6)).clamp(max=1.0))
        optimizer.set_rate(self.optimizer, self.job.recipe, step)
        self.optimizer.step()
        for module in self.spread.modules:
            for part in module.modules():
                if isinstance(part, Counts):
                    part.after_step()
        if self.ranks.world > 1:
            dist.all_reduce(loss)
        return Outcome(loss.item() / self.spread.loss_ranks, norm.item())

    def _data(self, step: int) -> Batch:
        """This rank's samples of the step, on the device."""
        share = self.job.batch // self.job.layout.batch_ranks
        first = self.spread.batch_rank * share
        with span("wait_for_batch"):
            return self.samples.batch(step, range(first, first + share)).to(self.ranks.device)

    def about(self) -> About:
        digests = {"text": self.samples.sha256}
        final = weights.digest(self.spread.modules, self.spread.meshes)
        if self.initial and final:
            digests |= {"weights_initial": self.initial, "weights_final": final}
        else:
            digests["weights"] = f"none: they are larger than {weights.DIGEST_CAP / 1e9:.0f} GB"
        seed = self.job.recipe.seed
        parameters = weights.count(self.spread.modules, self.spread.meshes)
        return About(self.samples.source, digests, {"weights": seed, "samples": seed}, parameters, self.model_flops)
