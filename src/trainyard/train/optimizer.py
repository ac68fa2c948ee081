"""The parameter update, and the learning rate of each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import cos, pi

import torch
from torch import nn

from trainyard.job import Recipe
from trainyard.train.clip import mesh_of

BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
FALLS_TO = 0.1
"""Share of the learning rate that is left after `fall_steps`."""


def make(parameters: Sequence[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    """One group a mesh: one call updates tensors of one mesh only."""
    groups: dict[object, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        groups[mesh_of(parameter)].append(parameter)
    return torch.optim.AdamW(
        [{"params": group} for group in groups.values()],
        lr=recipe.learning_rate,
        betas=BETAS,
        weight_decay=WEIGHT_DECAY,
        fused=recipe.update == "fused",
        foreach=recipe.update == "foreach",
    )


def rate(recipe: Recipe, step: int) -> float:
    """The learning rate of `step`, counted from 0: a function of the step alone, so that resuming needs no state."""
    if step < recipe.rise_steps:
        return recipe.learning_rate * (step + 1) / recipe.rise_steps
    if not recipe.fall_steps:
        return recipe.learning_rate
    done = min(1.0, (step - recipe.rise_steps) / recipe.fall_steps)
    return recipe.learning_rate * (FALLS_TO + (1 - FALLS_TO) * (1 + cos(pi * done)) / 2)


def set_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, step: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate(recipe, step)
