"""Pipeline parallelism: a rank's stages of the model, and the order in which they run.

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

from trainyard.job import Job, Layout
from trainyard.train.rules.pipeline_rules import ONE_STAGE, V_SHAPED
from trainyard.train.step.profiler_span import span
from trainyard.train.task import Batch, PipelineTask, Task

_ONE: Mapping[str, type[PipelineScheduleSingle]] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
}
_MANY: Mapping[str, type[PipelineScheduleMulti]] = {
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "looped_bfs": pipelining.ScheduleLoopedBFS,
    "zero_bubble": pipelining.ScheduleInterleavedZeroBubble,
    "zbv": pipelining.ScheduleZBVZeroBubble,
    "dualpipev": pipelining.ScheduleDualPipeV,
}


def stages_of(rank: int, layout: Layout, schedule: str) -> list[int]:
    """The numbers of the stages of a rank of the pp axis: every pp-th, or in a V its own and its mirror image."""
    if schedule in V_SHAPED:
        return [rank, 2 * layout.pp - 1 - rank]
    return list(range(rank, layout.pp * layout.interleave, layout.pp))


class PipelineRunner:
    """Runs the micro-batches of a step through this rank's stages. `modules`: each stage's, by its number."""

    def __init__(
        self, job: Job, task: Task, group: ProcessGroup, device: torch.device, modules: Mapping[int, nn.Module]
    ) -> None:
        self.job, self.task, self.group, self.device, self.modules = job, task, group, device, modules
        self.first, self.last = 0 in modules, job.layout.pp * job.layout.interleave - 1 in modules
        self.targets: Sequence[tuple[Tensor, ...]] = ()
        self.schedule: PipelineScheduleSingle | PipelineScheduleMulti | None = None

    def forward_backward(self, batch: Batch) -> Tensor:
        """This rank's mean loss over the micro-batches, zero without the last stage; the gradients stay in the
        parameters, averaged over the micro-batches and reduced once."""
        count = self.job.accumulate
        micro = batch.split(count)
        self.targets = [part.targets for part in micro]
        if self.schedule is None:
            self.schedule = self._schedule(micro[0])
        losses: list[Tensor] = []
        # torch divides one target tensor; a batch may have several, so the loss gets its micro-batch's number instead.
        numbers = torch.arange(count) if self.last else None
        inputs = batch.inputs if self.first else ()
        self.schedule.step(*inputs, target=numbers, losses=losses, return_outputs=False)
        return torch.stack(losses).detach().sum() if self.last else torch.zeros((), device=self.device)

    def loss(self, outputs: Tensor, number: Tensor) -> Tensor:
        """A micro-batch's share of the step's loss, so that gradients need no scaling later."""
        return self.task.loss(outputs, self.targets[int(number)]) / len(self.targets)

    def _schedule(self, part: Batch) -> PipelineScheduleSingle | PipelineScheduleMulti:
        """`part`: a micro-batch. What stages hand on is stated, so that torch need not run the model to learn it: that
        would count as use of experts, for one."""
        name, count = self.job.recipe.schedule, self.job.accumulate
        inputs = tuple(_described(value) for value in part.inputs)
        handed = tuple(
            _described(value).requires_grad_() for value in cast(PipelineTask, self.task).handed(len(part.inputs[0]))
        )
        kind = _Named if name in ONE_STAGE else PipelineStage
        of = self.job.layout.pp * self.job.layout.interleave
        stages: list[Any] = [
            kind(
                module,
                number,
                of,
                self.device,
                input_args=inputs if number == 0 else handed,
                output_args=handed,  # the last stage's go nowhere: only that they are described counts
                group=self.group,
            )
            for number, module in self.modules.items()
        ]
        if name in ONE_STAGE:
            return _ONE[name](stages[0], count, loss_fn=self.loss, scale_grads=False)
        return _MANY[name](stages, count, loss_fn=self.loss, scale_grads=False)


def _described(value: Tensor) -> Tensor:
    """Its shape and dtype."""
    return torch.empty_like(value, device="meta")


class _Named(PipelineStage):
    """Names what it runs in a profile as torch does for schedules of several stages a rank: `PP:0F3` is the forward of
    micro-batch 3 through stage 0, `PP:0B3` the backward."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with span(f"PP:{self.stage_index}F{fwd_chunk_id}"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with span(f"PP:{self.stage_index}B{bwd_chunk_id}"):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
