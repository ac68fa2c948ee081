"""Creates the optimizer, and sets the learning rate of each step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from msgspec.structs import replace
from torch import nn

from trainyard import plugins
from trainyard.job import Layout, Recipe
from trainyard.train.optimizers.learning_rate import rate
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.parallel.zero import Zero
from trainyard.train.rules.data_parallel_rules import divides_state
from trainyard.train.rules.optimizer_rules import update_implementation


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


def set_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, step: int) -> None:
    """Sets the learning rate of `step` in all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate(recipe, step)
