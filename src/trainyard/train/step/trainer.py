"""One training step: data, forward, backward, clip, optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainyard.job import Job
from trainyard.train.checkpoint.rank_group import CheckpointGroup
from trainyard.train.data.device_batches import DeviceBatches
from trainyard.train.data.loader import Loader, enabled_on_accelerator
from trainyard.train.model import initial_weights
from trainyard.train.optimizers import make_optimizer, rowwise_adagrad
from trainyard.train.optimizers.row_gradients import RowGradients
from trainyard.train.parallel.parallelize import ParallelModel
from trainyard.train.process_group import Ranks
from trainyard.train.rules import device_rules
from trainyard.train.step import gradient_clipping
from trainyard.train.step.deferred_counts import DeferredCounts
from trainyard.train.step.deferred_outcome import DeferredOutcome
from trainyard.train.step.first_non_finite import first_non_finite
from trainyard.train.step.loss_scaling import LossScaling
from trainyard.train.step.outcome import About, NonFiniteTensor, Outcome, StepFault, StepResult
from trainyard.train.step.step_guard import StepGuard
from trainyard.train.task import Batch, DiscardsStep, HasAuxiliaryLoss, ReportsCounts, Samples, Task, UpdatesAfterStep

PartT = TypeVar("PartT")


class Trainer:
    """A rank's `Training`. Call with the step's number on all ranks.

    The global batch is split over ranks, then over micro-batches of equal size, and averaged. Any split gives the same
    loss and gradients up to rounding, also one with different numbers of micro-batches per rank.
    """

    def __init__(self, job: Job, ranks: Ranks, task: Task, samples: Samples, model_flops: int) -> None:
        """Builds model, optimizer and loader of this rank. `model_flops`: FLOPs of a step over all ranks, for MFU.

        `defers_outcome`: whether the update depends on neither loss nor norm, so that the host does not wait for them.
        `initial`: digest of the initial weights, None if they are too large or unknown. `unshared`: the parameters that
        exist on this rank only. `auxiliary_losses`, `step_updates`: the submodules with an auxiliary loss, and those to
        update after each step. `counters`: those whose tokens per expert this rank reports. Replaces `task.loss` by the
        scaled loss. Draws no weights in the context `initial_weights.skipped`.
        """
        self.job = job
        self.ranks = ranks
        self.samples = samples
        self.model_flops = model_flops
        device_rules.check(job.recipe, ranks.vendor)
        self.scaling = LossScaling(job)
        self.guard = StepGuard(job.recipe)
        self.fault: StepFault | None = None
        self.defers_outcome = ranks.device.type == "cuda" and not (self.guard.checks or self.scaling.scales_loss)
        task.loss = self.scaling.scale_loss(task.loss)  # scales every use of the loss
        self.parallel_model = ParallelModel(job, ranks, task)
        loader = Loader(job, samples, self.parallel_model.batch_rank, ranks.device)
        prefetches = enabled_on_accelerator(job.recipe.device_prefetch, ranks.device)
        self.batches = DeviceBatches(loader, ranks.device, prefetches)
        self.optimizer = make_optimizer.make(self.parallel_model.modules, job.recipe, self.parallel_model.meshes)
        self.row_optimizer = rowwise_adagrad.make(self.parallel_model.modules, job.recipe)
        self._lacks_weights = initial_weights.are_skipped()
        self.initial = None if self._lacks_weights else self._digest()
        # Cached: searching all modules in each step took 3 % of a small model's step time.
        self.unshared = initial_weights.unshared(self.parallel_model.modules)
        self.auxiliary_losses, self.step_updates = self._parts(HasAuxiliaryLoss), self._parts(UpdatesAfterStep)
        self.counters = self._parts(ReportsCounts) if self.parallel_model.leads_stages else []

    def __call__(self, step: int) -> StepResult:
        """One step: forward, backward, clipping and update, skipped if the loss scale overflowed or the step has a
        `fault`. Returns the mean loss over all ranks and the gradient norm before clipping (infinite on overflow); of
        a step that `defers_outcome`, without waiting for them."""
        loss = self._forward_backward(self.batches(step))
        factor = self.scaling.factor
        norm = gradient_clipping.total_norm(
            self.parallel_model.parameters,
            self.parallel_model.meshes,
            self.unshared,
            self._row_gradients,
        ).div(factor)
        values = self._reduce(loss, norm)
        if self.defers_outcome:
            self._update(step, norm, factor)
            self._end_step(step)
            norm = norm.nan_to_num(nan=inf, posinf=inf)
            return DeferredOutcome(values[0], norm, factor * self.parallel_model.loss_ranks)
        outcome, is_norm_finite = self._read(values, norm, factor)
        is_overflow = not is_norm_finite and self.scaling.can_shrink
        self.fault = self.guard.judge(outcome.loss, is_norm_finite or is_overflow)
        if self.fault is not None:
            self._discard_step()
            return outcome
        if self.scaling.accept_step(is_norm_finite):
            self._update(step, norm, factor)
        self._end_step(step)
        return outcome

    def _forward_backward(self, batch: Batch) -> Tensor:
        """Computes the gradients of a batch, in place of earlier ones; returns this rank's scaled loss."""
        self._clear_gradients()
        for part in self.auxiliary_losses:
            part.set_loss_weight(self.scaling.factor / self.job.mean_micro_batches)
        loss = self.parallel_model.forward_backward(batch)
        if self.row_optimizer:
            self.row_optimizer.gradients.collect()
        return loss

    def _clear_gradients(self) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()

    def _reduce(self, loss: Tensor, norm: Tensor) -> Tensor:
        """(scaled loss, number of ranks whose norm is not finite), summed over all ranks. `loss`: this rank's."""
        values = torch.stack((loss, norm.isfinite().logical_not().to(loss)))
        if self.ranks.world > 1:
            dist.all_reduce(values)
        return values

    def _read(self, values: Tensor, norm: Tensor, factor: float) -> tuple[Outcome, bool]:
        """The step's outcome, and whether the norm is finite on all ranks, which is true or false on all of them. Waits
        for the device once. `values`: of `_reduce`; `factor`: of the loss."""
        loss_sum, non_finite_ranks, own_norm = torch.cat((values, norm.to(values).reshape(1))).tolist()
        is_norm_finite = non_finite_ranks == 0
        mean_loss = loss_sum / factor / self.parallel_model.loss_ranks
        return Outcome(mean_loss, own_norm if is_norm_finite else inf), is_norm_finite

    def _update(self, step: int, norm: Tensor, factor: float) -> None:
        """Clips the gradients, which are scaled by `factor`, to the recipe's `max_norm`, and updates the weights."""
        clip_factor = gradient_clipping.clip_factor(norm, self.job.recipe.max_norm)
        gradient_clipping.scale(self.parallel_model.parameters, clip_factor / factor)
        if self.row_optimizer:
            self.row_optimizer.gradients.scale(clip_factor / factor)
        for optimizer in self.optimizers():
            make_optimizer.set_rate(optimizer, self.job.recipe, step)
            optimizer.step()

    def _end_step(self, step: int) -> None:
        """Updates modules that change after each step, and launches the copy of the next batch of the run."""
        for part in self.step_updates:
            part.after_step()
        if step + 1 < self.job.measure.in_all:
            self.batches.prefetch(step + 1)

    def _discard_step(self) -> None:
        """Forgets what modules counted in a step whose update is not applied."""
        for part in self._parts(DiscardsStep):
            part.discard_step()

    def find_non_finite(self, step: int) -> NonFiniteTensor | None:
        """Implements `Guarded`. Afterwards there are no gradients, and weights and state are as before."""
        model, batch = self.parallel_model, self.batches(step)
        own_first = first_non_finite(
            rank=self.ranks.rank,
            stages=model.stages,
            optimizers=self.optimizers(),
            rows=self._row_gradients,
            inputs=batch.inputs,
            repeat=lambda: self._repeat(batch),
        )
        self._clear_gradients()
        self._discard_step()
        return min(filter(None, CheckpointGroup(self.ranks).all_gather(own_first)), default=None)

    def _repeat(self, batch: Batch) -> Tensor:
        """The loss of a batch, with its gradients; random numbers of later steps are as without this pass."""
        with torch.random.fork_rng([self.ranks.device] if self.ranks.device.type == "cuda" else []):
            return self._forward_backward(batch)

    def _digest(self) -> str | None:
        """The digest of the current weights; None if they are too large. Collective."""
        return initial_weights.digest(self.parallel_model.modules, self.parallel_model.meshes)

    def _parts(self, part_type: type[PartT]) -> list[PartT]:
        """The submodules of the given type."""
        return [
            part for module in self.parallel_model.modules for part in module.modules() if isinstance(part, part_type)
        ]

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
            name: counts.tolist()
            for part in self._parts(ReportsCounts)
            for name, counts in part.tokens_per_expert().items()
        }
        return About(
            text=self.samples.source,
            digests=digests,
            seeds={"weights": seed, "samples": seed},
            parameters=parameters,
            model_flops=self.model_flops,
            experts=experts,
        )

    @property
    def expert_count(self) -> int:
        """Implements `CountsExperts`."""
        return sum(part.expert_count for part in self.counters)

    def expert_counts(self) -> DeferredCounts | None:
        """Implements `CountsExperts`."""
        counts = {name: counts for part in self.counters for name, counts in part.tokens_per_expert().items()}
        return DeferredCounts(counts) if counts else None

    # The state in a checkpoint: the protocols `Stateful` and `SkipsInitialWeights` of
    # train/checkpoint/training_state.py.

    def modules(self) -> Sequence[nn.Module]:
        return self.parallel_model.modules

    @property
    def _row_gradients(self) -> RowGradients | None:
        """The gradients of rows of embedding tables; None if the model has none."""
        return self.row_optimizer.gradients if self.row_optimizer else None

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return [self.optimizer, self.row_optimizer] if self.row_optimizer else [self.optimizer]

    def numbers(self) -> Mapping[str, float]:
        """State of the loss scale and of the guard. Learning rate and samples follow from the step."""
        return {**self.scaling.state(), **self.guard.state()}

    def set_numbers(self, numbers: Mapping[str, float]) -> None:
        self.scaling.restore(numbers)
        self.guard.restore(numbers)

    def draw_weights(self) -> None:
        if self._lacks_weights:
            self.parallel_model.draw_weights()
            self._lacks_weights, self.initial = False, self._digest()

    def digests(self) -> dict[str, str]:
        """`weights_initial`: digest of the initial weights, if known."""
        return {"weights_initial": self.initial} if self.initial else {}

    def set_digests(self, digests: Mapping[str, str]) -> None:
        self._lacks_weights, self.initial = False, digests.get("weights_initial")
