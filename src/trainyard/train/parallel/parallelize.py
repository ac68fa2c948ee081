"""Parallelizes a model by its layout, and runs the forward and backward pass of its micro-batches.

In order: splits matrices (tp), replaces attention (cp), splits experts (ep), applies activation checkpointing and
compilation to blocks, and shards or replicates weights (dp). In a pipeline, each stage is treated like this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from trainyard.job import Job
from trainyard.train.model import blocks, initial_weights
from trainyard.train.parallel import data_parallelism, tensor_parallel
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.parallel.pipeline_parallel import PipelineRunner, stages_of
from trainyard.train.process_group import Ranks
from trainyard.train.rules.data_parallel_rules import replicates, shards
from trainyard.train.step import precision
from trainyard.train.step.precision import compute_dtype
from trainyard.train.task import Batch, Ends, HasEnds, PipelineTask, SplitsBatch, SplitTask, Task

Fill = Callable[[nn.Module, Task, torch.device, bool], None]
"""(module on the meta device, its task, the rank's device, whether weights are offloaded): allocates the module and
writes its initial values. `initialize`, except in a run without memory."""


def initialize(module: nn.Module, task: Task, device: torch.device, offload: bool) -> None:
    """Allocates a module on `device`, or on the CPU if offloaded (`offload`), and draws the task's initial values. In
    the context `initial_weights.skipped`, all values are zero."""
    module.to_empty(device="cpu" if offload else device)
    if initial_weights.are_skipped():
        initial_weights.clear((*module.parameters(), *module.buffers()))
    else:
        initial_weights.fill(module, task, device)
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, buffer.to(device))  # buffers are never offloaded


class ParallelModel:
    """A parallelized model. `modules` have this rank's parameters, under the unsharded model's names.

    `fill`: allocates and initializes a sharded module on the meta device. `defers_sharding`: the ranks that shard the
    same weights have different numbers of micro-batches, so that they communicate once per step only.
    """

    def __init__(self, job: Job, ranks: Ranks, task: Task, fill: Fill = initialize) -> None:
        """Builds this rank's part of the model: pipeline stages if pp > 1, or else the whole model, sharded or
        replicated as the layout says. `fill` writes the initial weights."""
        self.job, self.ranks, self.task, self.fill = job, ranks, task, fill
        self.meshes = Meshes(job.layout, ranks.device.type) if ranks.world > 1 else None
        self.defers_sharding = job.layout.shard_groups_differ and shards(job.layout)
        self.pipeline: PipelineRunner | None = None
        if self.meshes is not None and job.layout.pp > 1:
            stages = self._stages(self.meshes)
            self.modules = list(stages.values())
            self.pipeline = PipelineRunner(job, task, self.meshes.data.get_group("pp"), ranks.device, stages)
            return
        with torch.device("meta"):
            module = task.module()
        self.modules = [self._prepare(module)]
        self.call: nn.Module = module
        if self.meshes is not None and replicates(job.layout):
            self.call = data_parallelism.replicate(module, self.meshes)
        if job.recipe.compile == "whole":
            self.call.compile()

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """This rank's parameters. The objects do not change during training."""
        return [parameter for module in self.modules for parameter in module.parameters()]

    @property
    def stages(self) -> Mapping[int, nn.Module]:
        """This rank's pipeline stages by number; without a pipeline, the model as stage 0."""
        return self.pipeline.modules if self.pipeline is not None else {0: self.modules[0]}

    @property
    def batch_rank(self) -> int:
        """Index of this rank's share of a step's samples."""
        return self.meshes.batch_rank if self.meshes is not None else 0

    @property
    def leads_stages(self) -> bool:
        """Whether this rank is the first of those with the same pipeline stages."""
        return self.meshes is None or self.meshes.leads_stages

    @cached_property
    def micro_batch_count(self) -> int:
        """Micro-batches per step of this rank."""
        return self.job.micro_batches[self.batch_rank]

    @property
    def loss_ranks(self) -> int:
        """Number of ranks with a loss of their own. Their mean is the loss of the step."""
        return self.ranks.world // self.job.layout.pp

    def _stages(self, meshes: Meshes) -> dict[int, nn.Module]:
        """Builds this rank's pipeline stages: stage number -> module. A rank has `layout.interleave` of them."""
        layout, task = self.job.layout, cast(PipelineTask, self.task)
        stage_numbers = stages_of(meshes.data.get_local_rank("pp"), layout, self.job.recipe.schedule)
        with torch.device("meta"):
            stages = {number: task.stage(number, layout.pp * layout.interleave) for number in stage_numbers}
        return {number: self._prepare(stage) for number, stage in stages.items()}

    def _prepare(self, module: nn.Module) -> nn.Module:
        """Applies the layout and the recipe in place to the model or one of its stages, in the order of the module's
        docstring, then allocates and initializes it. Returns the same module."""
        layout, recipe = self.job.layout, self.job.recipe
        if self.meshes is not None and isinstance(self.task, SplitTask):
            self.task.split(module, self.meshes)
        parts = self.task.blocks(module)
        precision.prepare(parts.values(), recipe)
        blocks.prepare(parts, recipe)
        if self.meshes is not None and shards(layout):
            ends = self.task.ends(module) if isinstance(self.task, HasEnds) else Ends()
            data_parallelism.shard(module, parts.values(), ends, self.meshes, compute_dtype(recipe), recipe.offload)
        self.fill(module, self.task, self.ranks.device, recipe.offload)
        return module

    def draw_weights(self) -> None:
        """Draws the initial weights of a model that was built without them."""
        for module in self.modules:
            initial_weights.fill(module, self.task, self.ranks.device)

    def forward_backward(self, batch: Batch) -> Tensor:
        """Runs all micro-batches of this rank and returns its loss: their sum, divided by the mean number of
        micro-batches of a rank. Gradients accumulate in the parameters."""
        if self.meshes is not None and isinstance(self.task, SplitsBatch):
            batch = self.task.select_part(batch, self.meshes)
        loss = self._forward_backward(batch)
        tensor_parallel.reduce_partial_gradients(self.parameters)
        return loss

    def _forward_backward(self, batch: Batch) -> Tensor:
        """Accumulates gradients over the micro-batches of this rank's batch. Returns its loss, a scalar."""
        if self.pipeline is not None:
            return self.pipeline.forward_backward(batch)
        loss_sum = torch.zeros((), device=self.ranks.device)
        micro_batches = batch.split(self.micro_batch_count)
        divisor = self.job.mean_micro_batches
        for number, part in enumerate(micro_batches, start=1):
            with self._micro_batch(last=number == len(micro_batches)):
                loss = self.task.loss(self.call(*part.inputs), part.targets) / divisor
                loss.backward()
            loss_sum += loss.detach()
        return loss_sum

    def _micro_batch(self, last: bool) -> AbstractContextManager[object]:
        """Context for forward and backward of a micro-batch. Gradients are all-reduced after the last one only; those
        of sharded weights are reduce-scattered after each, since unsharded gradients would not fit.

        If the sharding is deferred, weights stay gathered from the first micro-batch to the last, and gradients are
        reduced after the last one.
        """
        for module in self.modules:
            if isinstance(module, FSDPModule):
                if self.defers_sharding:
                    module.set_requires_gradient_sync(last)
                    module.set_reshard_after_backward(last)
                else:
                    module.set_requires_all_reduce(last)
        if isinstance(self.call, DistributedDataParallel) and not last:
            return self.call.no_sync()
        return nullcontext()
