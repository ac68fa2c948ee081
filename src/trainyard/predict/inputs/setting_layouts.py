"""Layouts in which a framework supports a setting of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from trainyard import words
from trainyard.errors import BadInput
from trainyard.job import Job
from trainyard.predict.inputs.cases import ACTIVATION_CHECKPOINTS, SELECTIVE
from trainyard.predict.inputs.framework_support import Framework, Mask, micro_batches
from trainyard.predict.inputs.layout_space import LayoutSpace, PlannerInput
from trainyard.units import counted


class LayoutCondition(NamedTuple):
    """A condition of a setting. `flag`: its option; `holds`: whether layouts meet it, from their axes (axis -> value in
    each layout, or in one) and `micro_batches`, those of a rank and step; `reason`: what the framework supports, after
    its name."""

    flag: str
    holds: Callable[[Mapping[str, Any]], Any]
    reason: str


OFFLOADS_ACTIVATIONS: Mapping[str, LayoutCondition] = {
    "megatron": LayoutCondition(
        "--offload-activations",
        lambda axes: (axes["pp"] == 1) & (axes["activation_checkpoint"] == 0),
        "offloads activations without a pipeline and without recomputation only",
    ),
    "torchtitan": LayoutCondition(
        "--offload-activations",
        lambda axes: (axes["pp"] == 1) & (axes["activation_checkpoint"] != SELECTIVE),
        "offloads activations without a pipeline and without selective recomputation only",
    ),
}
"""Megatron Core refuses the other layouts (`transformer/transformer_config.py`). torch keeps the results that selective
recomputation does not compute again in a cache of its own, which hooks for saved tensors do not see."""

UPDATES_IN_BACKWARD: Mapping[str, LayoutCondition] = {
    "torchtitan": LayoutCondition(
        "--optimizer-in-backward",
        lambda axes: (
            (axes["pp"] * axes["ep"] * axes["micro_batches"] == 1)
            & ((axes["dp_shard"] * axes["cp"] > 1) | (axes["dp_replicate"] == 1))
        ),
        "updates weights in the backward pass with one micro-batch per step, in FSDP or on a single rank, without "
        "pipeline and expert parallelism only",
    ),
}
"""torchtitan refuses pipelines and expert parallelism (`components/optimizer.py`). The hooks that update a weight run
after each micro-batch, and with DDP before its gradient is reduced."""


def restrict(framework: Framework, conditions: Sequence[LayoutCondition]) -> Framework:
    """The framework with the layouts that meet all conditions, of those that it supports."""
    if not conditions:
        return framework

    def allows(wanted: PlannerInput, space: LayoutSpace) -> Mask:
        """Mask of the layouts that the framework and the settings support."""
        axes = {**space.columns, "micro_batches": micro_batches(wanted, space.columns)}
        masks = [np.asarray(condition.holds(axes)) for condition in conditions]
        return reduce(np.logical_and, masks, framework.allows(wanted, space))

    reasons = [condition.reason for condition in conditions]
    reasons = [framework.unsupported, *reasons] if framework.unsupported else reasons
    return framework._replace(allows=allows, unsupported="; it ".join(reasons))


def check_job(framework: Framework, conditions: Sequence[LayoutCondition], job: Job, file: str) -> None:
    """Raises `BadInput` if the job of the configuration `file` does not meet a condition."""
    layout, mode = job.layout, job.recipe.activation_checkpoint
    axes = {axis: getattr(layout, axis) for axis in words.AXES} | {
        "activation_checkpoint": ACTIVATION_CHECKPOINTS.index(mode), "micro_batches": job.accumulate,
    }  # fmt: skip
    for condition in conditions:
        if not condition.holds(axes):
            raise BadInput(
                f"{condition.flag}: {framework.display_name} {condition.reason}, but {file} has {layout}, "
                f"{counted(job.accumulate, 'micro-batch')} and activation checkpointing {mode}.",
                f"Leave out {condition.flag}, or change the file.",
            )
