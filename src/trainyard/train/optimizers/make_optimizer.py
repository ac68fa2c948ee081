"""Creates the optimizer, and sets the learning rate of each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import cos, pi
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from trainyard import plugins
from trainyard.job import Layout, Recipe
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.parallel.zero import Zero
from trainyard.train.rules.data_parallel_rules import divides_state
from trainyard.train.rules.recipe_rules import update_implementation
from trainyard.train.step.gradient_clipping import mesh_of

FINAL_RATE_FRACTION = 0.1
"""Fraction of the learning rate that remains after `decay_steps`."""


def make(modules: Sequence[nn.Module], recipe: Recipe, meshes: Meshes | None) -> torch.optim.Optimizer:
    """Creates the optimizer of all parameters of `modules`; under ZeRO-1 each rank has the state of its part."""
    named = [pair for module in modules for pair in module.named_parameters()]
    plugin = plugins.load("optimizers", recipe.optimizer)
    recipe = replace(
        recipe,
        optimizer_implementation=update_implementation(recipe, meshes.layout if meshes is not None else Layout()),
    )
    if meshes is not None and divides_state(meshes.layout):
        return Zero(named, meshes.data.get_group("dp_shard"), lambda own: plugin.make(own, recipe))
    return plugin.make(named, recipe)


def by_mesh(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """One parameter group per device mesh, since fused and foreach kernels take tensors of one mesh only."""
    groups: dict[object, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        groups[mesh_of(parameter)].append(parameter)
    return [{"params": group} for group in groups.values()]


def rate(recipe: Recipe, step: int) -> float:
    """The learning rate of `step`, counted from 0: linear warm-up to `learning_rate`, then constant or, with
    `decay_steps`, a cosine down to `FINAL_RATE_FRACTION` of it. A function of the step only, so that resuming needs no
    state."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    if not recipe.decay_steps:
        return recipe.learning_rate
    decay_fraction = min(1.0, (step - recipe.warmup_steps) / recipe.decay_steps)
    return recipe.learning_rate * (FINAL_RATE_FRACTION + (1 - FINAL_RATE_FRACTION) * (1 + cos(pi * decay_fraction)) / 2)


def set_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, step: int) -> None:
    """Sets the learning rate of `step` in all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate(recipe, step)
