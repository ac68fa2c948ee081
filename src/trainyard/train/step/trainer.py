"""One training step: data, forward, backward, clip, optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from trainyard.job import Job
from trainyard.train.data.loader import Loader
from trainyard.train.model import initial_weights
from trainyard.train.optimizers import make_optimizer
from trainyard.train.parallel.parallelize import ParallelModel
from trainyard.train.process_group import Ranks
from trainyard.train.rules import device_rules
from trainyard.train.step import gradient_clipping
from trainyard.train.step.loss_scaling import LossScaling
from trainyard.train.step.outcome import About, Outcome
from trainyard.train.step.profiler_span import span
from trainyard.train.task import Batch, HasAuxiliaryLoss, ReportsCounts, Samples, Task, UpdatesAfterStep

PartT = TypeVar("PartT")


class Trainer:
    """A rank's `Training`. Call with the step's number on all ranks.

    The global batch is split over ranks, then over micro-batches of equal size, and averaged. Any split gives the same
    loss and gradients up to rounding.
    """

    def __init__(self, job: Job, ranks: Ranks, task: Task, samples: Samples, model_flops: int) -> None:
        """Builds model, optimizer and loader of this rank. `model_flops`: FLOPs of a step over all ranks, for MFU.

        `initial`: digest of the initial weights, None if they are too large or unknown. `unshared`: the parameters that
        exist on this rank only. `auxiliary_losses`, `step_updates`: the submodules with an auxiliary loss, and those to
        update after each step. Replaces `task.loss` by the scaled loss. Draws no weights in the context
        `initial_weights.skipped`.
        """
        self.job = job
        self.ranks = ranks
        self.samples = samples
        self.model_flops = model_flops
        device_rules.check(job.recipe, ranks.vendor)
        self.scaling = LossScaling(job)
        task.loss = self.scaling.scale_loss(task.loss)  # scales every use of the loss
        self.parallel_model = ParallelModel(job, ranks, task)
        self.loader = Loader(job, samples, self.parallel_model.batch_rank)
        self.optimizer = make_optimizer.make(self.parallel_model.modules, job.recipe, self.parallel_model.meshes)
        self._lacks_weights = initial_weights.are_skipped()
        self.initial = None if self._lacks_weights else self._digest()
        # Cached: searching all modules in each step took 3 % of a small model's step time.
        self.unshared = initial_weights.unshared(self.parallel_model.modules)
        self.auxiliary_losses, self.step_updates = self._parts(HasAuxiliaryLoss), self._parts(UpdatesAfterStep)

    def __call__(self, step: int) -> Outcome:
        """One step: forward, backward, clipping and update, skipped if the loss scale overflowed. Returns the mean loss
        over all ranks and the gradient norm before clipping (infinite on overflow)."""
        batch = self._data(step)
        self.optimizer.zero_grad()
        for part in self.auxiliary_losses:
            part.set_loss_weight(self.scaling.factor / self.job.accumulate)
        loss = self.parallel_model.forward_backward(batch)
        parameters = self.parallel_model.parameters
        factor = self.scaling.factor
        norm = gradient_clipping.total_norm(parameters, self.parallel_model.meshes, self.unshared) / factor
        if self.scaling.accept_step(norm):
            gradient_clipping.scale(parameters, gradient_clipping.clip_factor(norm, self.job.recipe.max_norm) / factor)
            make_optimizer.set_rate(self.optimizer, self.job.recipe, step)
            self.optimizer.step()
        for part in self.step_updates:
            part.after_step()
        if self.ranks.world > 1:
            dist.all_reduce(loss)
        return Outcome(
            loss.item() / factor / self.parallel_model.loss_ranks, norm.nan_to_num(nan=inf, posinf=inf).item()
        )

    def _digest(self) -> str | None:
        """The digest of the current weights; None if they are too large. Collective."""
        return initial_weights.digest(self.parallel_model.modules, self.parallel_model.meshes)

    def _parts(self, part_type: type[PartT]) -> list[PartT]:
        """The submodules of the given type."""
        return [
            part for module in self.parallel_model.modules for part in module.modules() if isinstance(part, part_type)
        ]

    def _data(self, step: int) -> Batch:
        """This rank's samples of the step, on the device."""
        with span("wait_for_batch"):
            return self.loader(step).to(self.ranks.device)

    def about(self) -> About:
        """Facts about data and model for the run's record: digests of samples and weights, seeds, parameter count, and
        tokens per expert by layer. Collective."""
        digests = {"text": self.samples.sha256}
        if final := self._digest():
            digests |= self.digests() | {"weights_final": final}
        else:
            digests["weights"] = f"none: they are larger than {initial_weights.MAX_DIGEST_BYTES / 1e9:.0f} GB"
        seed = self.job.recipe.seed
        parameters = initial_weights.count_parameters(self.parallel_model.modules, self.parallel_model.meshes)
        experts = {
            name: tokens for part in self._parts(ReportsCounts) for name, tokens in part.tokens_per_expert().items()
        }
        return About(
            text=self.samples.source,
            digests=digests,
            seeds={"weights": seed, "samples": seed},
            parameters=parameters,
            model_flops=self.model_flops,
            experts=experts,
        )

    # The state in a checkpoint: the protocols `Stateful` and `SkipsInitialWeights` of
    # train/checkpoint/training_state.py.

    def modules(self) -> Sequence[nn.Module]:
        return self.parallel_model.modules

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return [self.optimizer]

    def numbers(self) -> Mapping[str, float]:
        """State of the loss scale. Learning rate and samples follow from the step."""
        return self.scaling.state()

    def set_numbers(self, numbers: Mapping[str, float]) -> None:
        self.scaling.restore(numbers)

    def draw_weights(self) -> None:
        if self._lacks_weights:
            self.parallel_model.draw_weights()
            self._lacks_weights, self.initial = False, self._digest()

    def digests(self) -> dict[str, str]:
        """`weights_initial`: digest of the initial weights, if known."""
        return {"weights_initial": self.initial} if self.initial else {}

    def set_digests(self, digests: Mapping[str, str]) -> None:
        self._lacks_weights, self.initial = False, digests.get("weights_initial")
