"""A model spread over the ranks as its layout says; what is applied, in this order, and how a micro-batch goes through.

Matrices are split (tp), experts divided (ep), attention given its peers (cp), blocks prepared (recomputed, compiled),
weights sharded or replicated (dp). A pipeline does this to each of its stages.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from trainyard.job import Job
from trainyard.train import blocks, weights
from trainyard.train.parallel import data
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.precision import computes
from trainyard.train.ranks import Ranks
from trainyard.train.task import Batch, Splits, Task


class Spread:
    """`modules` hold this rank's parameters, under the whole model's names."""

    def __init__(self, job: Job, ranks: Ranks, task: Task) -> None:
        self.job, self.ranks, self.task = job, ranks, task
        self.meshes = Meshes(job.layout, ranks.device.type) if ranks.world > 1 else None
        with torch.device("meta"):
            module = task.module()
        self.modules = [self._placed(module)]
        self.call: nn.Module = module
        if self.meshes is not None and data.replicates(job.layout):
            self.call = data.replicate(module, self.meshes)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for module in self.modules for parameter in module.parameters()]

    @property
    def batch_rank(self) -> int:
        """Which share of a step's samples is this rank's."""
        return self.meshes.batch_rank if self.meshes is not None else 0

    @property
    def loss_ranks(self) -> int:
        """How many ranks have a loss of their own that counts as much as any other's."""
        return self.ranks.world // self.job.layout.pp

    def _placed(self, module: nn.Module) -> nn.Module:
        """One stage, or all of the model: split, prepared, sharded, filled."""
        layout, recipe = self.job.layout, self.job.recipe
        if self.meshes is not None and isinstance(self.task, Splits):
            self.task.split(module, self.meshes)
        parts = self.task.blocks(module)
        blocks.prepare(parts, recipe)
        if self.meshes is not None and not data.replicates(layout):
            data.shard(module, parts.values(), self.meshes, computes(recipe))
        module.to_empty(device=self.ranks.device)
        weights.fill(module, self.task.draw)
        return module

    def forward_backward(self, batch: Batch) -> Tensor:
        """This rank's mean loss over the micro-batches of its share; the gradients stay in the parameters."""
        total = torch.zeros((), device=self.ranks.device)
        micro = batch.split(self.job.accumulate)
        for number, part in enumerate(micro, start=1):
            with self._micro_batch(last=number == len(micro)):
                loss = self.task.loss(self.call(*part.inputs), part.targets) / len(micro)
                loss.backward()
            total += loss.detach()
        return total

    def _micro_batch(self, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward of a micro-batch: gradients travel after the last one only."""
        for module in self.modules:
            if isinstance(module, FSDPModule):
                module.set_requires_gradient_sync(last)
                module.set_is_last_backward(last)
        if isinstance(self.call, DistributedDataParallel) and not last:
            return self.call.no_sync()
        return nullcontext()
