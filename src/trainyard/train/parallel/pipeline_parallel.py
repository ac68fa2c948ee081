"""Pipeline parallelism: a rank's stages of the model, and the schedule that runs them.

The schedules are torch.distributed.pipelining's: GPipe (Huang et al. 2018, arXiv:1811.06965), 1F1B and interleaved 1F1B
(Narayanan et al. 2021, arXiv:2104.04473), breadth first (Lamy-Poirier 2022, arXiv:2211.05953), zero bubble and its V
(Qi et al. 2023, arXiv:2401.10241), DualPipeV (DeepSeek-AI 2024, arXiv:2412.19437).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, pipelining
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.train.rules.pipeline_rules import ONE_STAGE, V_SHAPED
from trainyard.train.step.profiler_span import span
from trainyard.train.task import Batch, PipelineTask, Task

_ONE_STAGE: Mapping[str, type[PipelineScheduleSingle]] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
}
_MULTI_STAGE: Mapping[str, type[PipelineScheduleMulti]] = {
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "looped_bfs": pipelining.ScheduleLoopedBFS,
    "zero_bubble": pipelining.ScheduleInterleavedZeroBubble,
    "zbv": pipelining.ScheduleZBVZeroBubble,
    "dualpipev": pipelining.ScheduleDualPipeV,
}


def stages_of(rank: int, layout: Layout, schedule: str) -> list[int]:
    """Stage numbers of `rank` of the pp axis: every pp-th, or in a V-shaped schedule its own and the mirrored one."""
    if schedule in V_SHAPED:
        return [rank, 2 * layout.pp - 1 - rank]
    return list(range(rank, layout.pp * layout.interleave, layout.pp))


class PipelineRunner:
    """Runs the micro-batches of a step through this rank's stages. `modules`: by stage number."""

    def __init__(
        self, job: Job, task: Task, group: ProcessGroup, device: torch.device, modules: Mapping[int, nn.Module]
    ) -> None:
        """`modules`: this rank's stages by stage number. `first`, `last`: whether they include the pipeline's first and
        last. `targets`: of each micro-batch of the current batch. `schedule`: torch's schedule, built at the first
        batch."""
        self.job, self.task, self.group, self.device, self.modules = job, task, group, device, modules
        self.first, self.last = 0 in modules, job.layout.pp * job.layout.interleave - 1 in modules
        self.targets: Sequence[tuple[Tensor, ...]] = ()
        self.schedule: PipelineScheduleSingle | PipelineScheduleMulti | None = None

    def forward_backward(self, batch: Batch) -> Tensor:
        """Runs all micro-batches and returns this rank's mean loss, zero without the last stage. Gradients accumulate
        in the parameters, averaged over the micro-batches, and are reduced once."""
        micro_batch_count = self.job.accumulate
        micro_batches = batch.split(micro_batch_count)
        self.targets = [part.targets for part in micro_batches]
        if self.schedule is None:
            self.schedule = self._schedule(micro_batches[0])
        losses: list[Tensor] = []
        # torch splits a single target tensor, but a batch may have several: pass micro-batch numbers instead.
        micro_batch_numbers = torch.arange(micro_batch_count) if self.last else None
        inputs = batch.inputs if self.first else ()
        self.schedule.step(*inputs, target=micro_batch_numbers, losses=losses, return_outputs=False)
        return torch.stack(losses).detach().sum() if self.last else torch.zeros((), device=self.device)

    def loss(self, outputs: Tensor, number: Tensor) -> Tensor:
        """A micro-batch's loss divided by the number of micro-batches, so that gradients need no scaling."""
        return self.task.loss(outputs, self.targets[int(number)]) / len(self.targets)

    def _schedule(self, micro_batch: Batch) -> PipelineScheduleSingle | PipelineScheduleMulti:
        """Creates the schedule. `micro_batch`: any, for the shapes of the inputs.

        Stage outputs are declared, so that torch does not run the model to infer them, which would count tokens of
        experts.
        """
        name, micro_batch_count = self.job.recipe.schedule, self.job.accumulate
        inputs = tuple(_meta(value) for value in micro_batch.inputs)
        hidden_states = tuple(
            _meta(value).requires_grad_()
            for value in cast(PipelineTask, self.task).stage_activations(len(micro_batch.inputs[0]))
        )
        stage_type = _SpannedStage if name in ONE_STAGE else PipelineStage
        stage_count = self.job.layout.pp * self.job.layout.interleave
        stages: list[Any] = [
            stage_type(
                module,
                number,
                stage_count,
                self.device,
                input_args=inputs if number == 0 else hidden_states,
                output_args=hidden_states,  # unused for the last stage, but required
                group=self.group,
            )
            for number, module in self.modules.items()
        ]
        if name in ONE_STAGE:
            return _ONE_STAGE[name](stages[0], micro_batch_count, loss_fn=self.loss, scale_grads=False)
        return _MULTI_STAGE[name](stages, micro_batch_count, loss_fn=self.loss, scale_grads=False)


def _meta(value: Tensor) -> Tensor:
    """A meta tensor of the same shape and dtype."""
    return torch.empty_like(value, device="meta")


class _SpannedStage(PipelineStage):
    """A stage that records profiler spans, named as torch does for multi-stage schedules: `PP:0F3` is the forward of
    micro-batch 3 through stage 0, `PP:0B3` its backward."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with span(f"PP:{self.stage_index}F{fwd_chunk_id}"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with span(f"PP:{self.stage_index}B{bwd_chunk_id}"):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
