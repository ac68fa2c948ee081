"""The learning rate of each step. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import cos, pi, sqrt

from trainyard.recipe import Recipe

_SHAPES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda fraction: 1.0 - fraction,
    "cosine": lambda fraction: (1.0 + cos(pi * fraction)) / 2,
    "minus_sqrt": lambda fraction: 1.0 - sqrt(fraction),
    "exponential": lambda fraction: 2.0 * 0.5**fraction - 1.0,
}
"""Shape of a decay -> function from the elapsed fraction of `decay_steps` to the remaining part, from 1 to 0. As in
Megatron-LM (`--lr-wsd-decay-style`)."""


def rate(recipe: Recipe, step: int) -> float:
    """The learning rate of `step`, counted from 0. A function of the step only, so that a resumed run continues the
    schedule without state."""
    return recipe.learning_rate * _factor(recipe, step)


def _factor(recipe: Recipe, step: int) -> float:
    """The fraction of `learning_rate` at `step`: linear warm-up to 1, then the decay of the recipe's style."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    elapsed = step - recipe.warmup_steps
    if recipe.lr_decay_style == "step":
        return recipe.lr_gamma ** (elapsed // recipe.lr_step_size)
    if recipe.lr_decay_style == "wsd":
        elapsed -= recipe.stable_steps
    if recipe.lr_decay_style == "constant" or not recipe.decay_steps or elapsed <= 0:
        return 1.0
    shape = recipe.lr_wsd_decay_style if recipe.lr_decay_style == "wsd" else recipe.lr_decay_style
    remaining = _SHAPES[shape](min(1.0, elapsed / recipe.decay_steps))
    return recipe.min_lr_factor + (1 - recipe.min_lr_factor) * remaining
