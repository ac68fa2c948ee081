"""Faults of graded size, planted in the training of one process, and the smallest that a parity check detects.

A size of 1 is the whole fault: the gradients of two ranks summed instead of averaged, a partial sum lost. Each fault is
planted in a jittered replica, so that a rounding error is in addition to it, as in a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from trainyard import plugins
from trainyard.job import Job
from trainyard.numerics.parity import STEPS
from trainyard.numerics.rounding_tolerance import (
    StepTolerance,
    relative_error,
    step_tolerances,
    tolerance_rule,
)
from trainyard.numerics.ulp_jitter import UlpJitter
from trainyard.train.step.outcome import Outcome
from trainyard.train.step.trainer import Trainer
from trainyard.train.task import Batch

SEED = 1000
"""Seed of the jitter of a faulty training; the replicas of the reference have 0, 1, and so on."""
SMALLEST = 24
"""Sizes down to 2^-24 are tried."""
Plant = Callable[[Trainer, float], None]
"""(trainer, size): changes the trainer so that it has the fault."""


class Reference(NamedTuple):
    """The training of one process: outcomes and tolerances of each step."""

    outcomes: list[Outcome]
    tolerances: list[StepTolerance]

    def with_fixed_tolerance(self, tolerance: float) -> Reference:
        """The same outcomes with one tolerance for all steps, of loss and gradient norm."""
        return self._replace(tolerances=[StepTolerance(tolerance, tolerance)] * len(self.outcomes))


def train(job: Job, seed: int | None = None, plant: Plant | None = None, size: float = 0.0) -> list[Outcome]:
    """Trains a job of one rank in this process. `seed`: of the jitter, if any; `plant`, `size`: a fault, if any."""
    trainer = cast(Trainer, plugins.load("workloads", job.workload).build(job, "cpu"))
    if plant is not None:
        plant(trainer, size)
    with nullcontext() if seed is None else UlpJitter(seed):
        return [Outcome(result.loss, result.grad_norm) for result in map(trainer, range(STEPS))]


def reference(job: Job) -> Reference:
    """The outcomes of the job, of one rank, and the tolerances from its replicas."""
    rule, outcomes = tolerance_rule(STEPS), train(job)
    return Reference(outcomes, step_tolerances(rule, outcomes, [train(job, seed) for seed in range(rule.replicas)]))


def differs(outcomes: list[Outcome], expected: Reference) -> bool:
    """Whether a loss or gradient norm is outside its tolerance in any step."""
    return any(
        relative_error(step.loss, right.loss) > tolerance.loss
        or relative_error(step.grad_norm, right.grad_norm) > tolerance.grad_norm
        for step, right, tolerance in zip(outcomes, *expected)
    )


def smallest_detected(job: Job, plant: Plant, limits: Sequence[Reference]) -> list[float | None]:
    """For each of `limits`: the smallest power of two, from 1 down, such that a fault of this and of every larger size
    is detected; None if not even the whole fault is."""
    smallest: list[float | None] = [None] * len(limits)
    detecting = set(range(len(limits)))
    for power in range(SMALLEST + 1):
        outcomes = train(job, SEED, plant, 2.0**-power)
        detecting = {number for number in detecting if differs(outcomes, limits[number])}
        if not detecting:
            break
        for number in detecting:
            smallest[number] = 2.0**-power
    return smallest


def _summed_gradients(trainer: Trainer, size: float) -> None:
    """All gradients are multiplied by 1 + `size`: with 1, the sum over two ranks instead of the mean."""
    _change_gradients(trainer, lambda _: 1 + size)


def _lost_bias_gradient(trainer: Trainer, size: float) -> None:
    """Gradients of one bias of 32 values lose `size` of their value: with 1, its all-reduce gave nothing."""
    _change_gradients(trainer, lambda name: 1 - size if name == "layers.1.attention.out.bias" else 1)


def _lost_shard(trainer: Trainer, size: float) -> None:
    """The norm misses the fraction `size` of the squares of one matrix, `mlp.down` of the first layer: with 1, that of
    a rank with the whole matrix. Gradients and their update are right except for clipping."""
    parameter = dict(trainer.modules()[0].named_parameters())["layers.0.mlp.down.weight"]
    read = trainer._read  # the first use of the norm  # pyright: ignore[reportPrivateUsage]

    def read_lossy(values: Tensor, norm: Tensor, factor: float) -> tuple[Outcome, bool]:
        squares = cast(Tensor, parameter.grad).square().sum() / factor**2
        norm.copy_((norm.square() - size * squares).clamp(min=0).sqrt())
        return read(values, norm, factor)

    trainer._read = read_lossy  # pyright: ignore[reportPrivateUsage]


def _lost_partial_sum(trainer: Trainer, size: float) -> None:
    """The output of one attention layer is multiplied by 1 - `size` / 2: with 1, half of it, as if the all-reduce of
    tensor parallelism between two ranks were missing and both halves were equal."""

    def scaled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output * (1 - size / 2)

    trainer.modules()[0].get_submodule("layers.0.attention.out").register_forward_hook(scaled)


def _change_gradients(trainer: Trainer, factor: Callable[[str], float]) -> None:
    """Multiplies the gradients of each step by `factor` of the parameter's name, before their norm is computed."""
    run = trainer.parallel_model.forward_backward

    def forward_backward(batch: Batch) -> Tensor:
        loss = run(batch)
        for name, parameter in trainer.modules()[0].named_parameters():
            if parameter.grad is not None and (by := factor(name)) != 1:
                with torch.no_grad():
                    parameter.grad.mul_(by)
        return loss

    trainer.parallel_model.forward_backward = forward_backward


FAULTS: Mapping[str, Plant] = {
    "gradients summed over ranks, not averaged": _summed_gradients,
    "gradient of one bias not all-reduced": _lost_bias_gradient,
    "shard of one matrix missing in the norm": _lost_shard,
    "output of one attention layer not all-reduced": _lost_partial_sum,
}
"""Faults of a decoder with biases and two layers."""
