"""A model spread over the ranks as its layout says; what is applied, in this order, and how a micro-batch goes through.

Matrices are split (tp), experts divided (ep), attention given its peers (cp), blocks prepared (recomputed, compiled),
weights sharded or replicated (dp). A pipeline does this to each of its stages.
"""

from __future__ import annotations

from collections.abc import Callable
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
from trainyard.train.step.precision import computes
from trainyard.train.task import Batch, PipelineTask, SplitsBatch, SplitTask, Task

Fill = Callable[[nn.Module, Task, torch.device, bool], None]


def drawn(module: nn.Module, task: Task, device: torch.device, offload: bool) -> None:
    """With the task's initial values, on `device`, but parameters that are offloaded."""
    module.to_empty(device="cpu" if offload else device)
    initial_weights.fill(module, task.draw)
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, buffer.to(device))  # is never offloaded


class ParallelModel:
    """`modules` hold this rank's parameters, under the whole model's names. `fill`: what gives a module that lies on
    the meta device, split, its memory and its values."""

    def __init__(self, job: Job, ranks: Ranks, task: Task, fill: Fill = drawn) -> None:
        self.job, self.ranks, self.task, self.fill = job, ranks, task, fill
        self.meshes = Meshes(job.layout, ranks.device.type) if ranks.world > 1 else None
        self.pipeline: PipelineRunner | None = None
        if self.meshes is not None and job.layout.pp > 1:
            stages = self._stages(self.meshes)
            self.modules = list(stages.values())
            self.pipeline = PipelineRunner(job, task, self.meshes.data.get_group("pp"), ranks.device, stages)
            return
        with torch.device("meta"):
            module = task.module()
        self.modules = [self._placed(module)]
        self.call: nn.Module = module
        if self.meshes is not None and replicates(job.layout):
            self.call = data_parallelism.replicate(module, self.meshes)
        if job.recipe.compile == "whole":
            self.call.compile()

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """They stay the same ones while they are trained."""
        return [parameter for module in self.modules for parameter in module.parameters()]

    @property
    def batch_rank(self) -> int:
        """Which share of a step's samples is this rank's."""
        return self.meshes.batch_rank if self.meshes is not None else 0

    @property
    def loss_ranks(self) -> int:
        """How many ranks have a loss of their own that counts as much as any other's."""
        return self.ranks.world // self.job.layout.pp

    def _stages(self, meshes: Meshes) -> dict[int, nn.Module]:
        """This rank's stages of the pipeline, by their numbers."""
        layout, task = self.job.layout, cast(PipelineTask, self.task)
        numbers = stages_of(meshes.data.get_local_rank("pp"), layout, self.job.recipe.schedule)
        with torch.device("meta"):
            stages = {number: task.stage(number, layout.pp * layout.interleave) for number in numbers}
        return {number: self._placed(stage) for number, stage in stages.items()}

    def _placed(self, module: nn.Module) -> nn.Module:
        """One stage, or all of the model: split, prepared, sharded, filled."""
        layout, recipe = self.job.layout, self.job.recipe
        if self.meshes is not None and isinstance(self.task, SplitTask):
            self.task.split(module, self.meshes)
        parts = self.task.blocks(module)
        precision.prepare(parts.values(), recipe)
        blocks.prepare(parts, recipe)
        if self.meshes is not None and shards(layout):
            data_parallelism.shard(module, parts.values(), self.meshes, computes(recipe), recipe.offload)
        self.fill(module, self.task, self.ranks.device, recipe.offload)
        return module

    def forward_backward(self, batch: Batch) -> Tensor:
        """This rank's mean loss over the micro-batches of its share; the gradients stay in the parameters."""
        if self.meshes is not None and isinstance(self.task, SplitsBatch):
            batch = self.task.share(batch, self.meshes)
        with tensor_parallel.around_loss(self.job.layout):
            loss = self._forward_backward(batch)
        tensor_parallel.settle(self.parameters)
        return loss

    def _forward_backward(self, batch: Batch) -> Tensor:
        if self.pipeline is not None:
            return self.pipeline.forward_backward(batch)
        total = torch.zeros((), device=self.ranks.device)
        micro = batch.split(self.job.accumulate)
        for number, part in enumerate(micro, start=1):
            with self._micro_batch(last=number == len(micro)):
                loss = self.task.loss(self.call(*part.inputs), part.targets) / len(micro)
                loss.backward()
            total += loss.detach()
        return total

    def _micro_batch(self, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward of a micro-batch. Gradients travel after the last one only; those of weights that
        are sharded are divided after each, since nobody has room for all of them."""
        for module in self.modules:
            if isinstance(module, FSDPModule):
                module.set_requires_all_reduce(last)
        if isinstance(self.call, DistributedDataParallel) and not last:
            return self.call.no_sync()
        return nullcontext()
