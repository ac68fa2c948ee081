"""Trains in float64, from the float32 weights and the data of a job: the reference without rounding that matters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard import plugins
from trainyard.job import Job
from trainyard.train.data.device_batches import DeviceBatches
from trainyard.train.step.outcome import Outcome
from trainyard.train.step.trainer import Trainer
from trainyard.train.task import Batch


def train_in_float64(job: Job, steps: int) -> list[Outcome]:
    """Trains `steps` steps of a one-rank job on this process's CPU. Initial weights and samples are those of the job,
    float32; everything computed from them is float64, whatever the job's dtype."""
    exact = replace(job, recipe=replace(job.recipe, dtype="float32"))
    trainer = cast(Trainer, plugins.load("workloads", job.workload).build(exact, "cpu"))
    for module in trainer.modules():
        module.double()
    load = trainer.batches
    with _float64():
        trainer.batches = DeviceBatches(lambda step: _widen(load(step)), trainer.ranks.device, prefetches=False)
        return [Outcome(result.loss, result.grad_norm) for result in map(trainer, range(steps))]


def _widen(batch: Batch) -> Batch:
    """The batch with its floating-point tensors in float64."""
    inputs, targets = (tuple(part.double() if part.is_floating_point() else part for part in parts) for parts in batch)
    return Batch(inputs, targets)


@contextmanager
def _float64() -> Iterator[None]:
    """Context in which every tensor of floating-point numbers is created in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64Casts():
            yield
    finally:
        torch.set_default_dtype(before)


class _Float64Casts(TorchDispatchMode):
    """Replaces the dtype of casts and of new tensors by float64, if it is a floating-point one."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        widened = {
            name: torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value
            for name, value in (kwargs or {}).items()
        }
        return func(*args, **widened)
