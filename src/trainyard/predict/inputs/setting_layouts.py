"""Layouts in which a framework supports a setting of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from trainyard.errors import BadInput
from trainyard.job import Job
from trainyard.predict.inputs.cases import ACTIVATION_CHECKPOINTS, SELECTIVE
from trainyard.predict.inputs.framework_support import Framework, Mask
from trainyard.predict.inputs.layout_space import LayoutSpace, PlannerInput


class LayoutCondition(NamedTuple):
    """A condition of a setting. `flag`: its option; `holds`: whether layouts meet it, from their axes (axis -> value in
    each layout, or in one); `reason`: what the framework supports, after its name."""

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


def restrict(framework: Framework, conditions: Sequence[LayoutCondition]) -> Framework:
    """The framework with the layouts that meet all conditions, of those that it supports."""
    if not conditions:
        return framework

    def allows(wanted: PlannerInput, space: LayoutSpace) -> Mask:
        """Mask of the layouts that the framework and the settings support."""
        masks = [np.asarray(condition.holds(space.columns)) for condition in conditions]
        return reduce(np.logical_and, masks, framework.allows(wanted, space))

    reasons = [condition.reason for condition in conditions]
    reasons = [framework.unsupported, *reasons] if framework.unsupported else reasons
    return framework._replace(allows=allows, unsupported="; it ".join(reasons))


def check_job(framework: Framework, conditions: Sequence[LayoutCondition], job: Job, file: str) -> None:
    """Raises `BadInput` if the job of the configuration `file` does not meet a condition."""
    layout, mode = job.layout, job.recipe.activation_checkpoint
    axes = {"pp": layout.pp, "ep": layout.ep, "activation_checkpoint": ACTIVATION_CHECKPOINTS.index(mode)}
    for condition in conditions:
        if not condition.holds(axes):
            raise BadInput(
                f"{condition.flag}: {framework.display_name} {condition.reason}, but {file} has pp {layout.pp} and "
                f"activation checkpointing {mode}.",
                f"Leave out {condition.flag}, or change the file.",
            )
