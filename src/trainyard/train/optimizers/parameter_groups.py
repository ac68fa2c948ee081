"""Parameter groups of an optimizer: which parameters have no weight decay, and which a kernel can update together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal

from torch import Tensor, nn

from trainyard.recipe import Recipe
from trainyard.train.step.gradient_clipping import mesh_of

_EMBEDDINGS = frozenset(("embed", "place", "position", "class_token"))
"""Names of lookup tables, learned positions and class tokens."""


def kind_of(name: str, parameter: Tensor) -> Literal["norm", "bias", "embedding", "matrix"]:
    """The kind of a parameter for weight decay. A tied head is the embedding; convolutions and experts are matrices. A
    vector is a norm's weight unless its name says otherwise."""
    *modules, last_part = name.split(".")
    if not _EMBEDDINGS.isdisjoint((*modules, last_part)):
        return "embedding"
    if modules and "norm" in modules[-1]:
        return "norm"
    if last_part == "bias":
        return "bias"
    return "norm" if parameter.dim() < 2 else "matrix"


def default_decay(recipe: Recipe, default: float) -> float:
    """The recipe's weight decay, or the optimizer's `default` if the recipe has none."""
    return default if recipe.weight_decay is None else recipe.weight_decay


def divide(named: Iterable[tuple[str, nn.Parameter]], recipe: Recipe, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups with the keys `params` and `weight_decay`: `weight_decay`, or 0 for the recipe's
    `no_weight_decay`. Parameters of different device meshes are in different groups, since fused and foreach kernels
    take tensors of one mesh only."""
    groups: dict[tuple[object, float], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in named:
        decay = 0.0 if kind_of(name, parameter) in recipe.no_weight_decay else weight_decay
        groups[mesh_of(parameter), decay].append(parameter)
    return [{"params": parameters, "weight_decay": decay} for (_, decay), parameters in groups.items()]
