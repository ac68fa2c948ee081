"""Creates the optimizer, and sets the learning rate of each step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from msgspec.structs import replace
from torch import nn

from trainyard import plugins
from trainyard.layout import Layout
from trainyard.recipe import Recipe
from trainyard.train.optimizers import row_gradients
from trainyard.train.optimizers.learning_rate import rate
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.parallel.zero import Zero
from trainyard.train.rules.data_parallel_rules import divides_state
from trainyard.train.rules.optimizer_rules import update_implementation


def make(modules: Sequence[nn.Module], recipe: Recipe, meshes: Meshes | None) -> torch.optim.Optimizer:
    """Creates the optimizer of the parameters of `modules`, except tables with gradients of rows; under ZeRO-1 each
    rank has the state of its part."""
    row_tables = {id(table.weight) for tables in row_gradients.find(modules) for table in tables.row_tables()}
    named = [
        (name, parameter)
        for module in modules
        for name, parameter in module.named_parameters()
        if id(parameter) not in row_tables
    ]
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
