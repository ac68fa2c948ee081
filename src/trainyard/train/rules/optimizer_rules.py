"""Constraints on the optimizer and the learning-rate schedule of a recipe. Needs no torch.

In messages, `$` is the root of the job file: `$.recipe` is its table [recipe].
"""

from __future__ import annotations

from typing import Literal

from trainyard import plugins
from trainyard.errors import BadJob, nearest
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.recipe import Recipe
from trainyard.train.rules.data_parallel_rules import shards


def check(job: Job) -> None:
    """Raises `BadJob`, with the nearest valid recipe, for an optimizer or schedule that cannot be used."""
    _check_optimizer(job)
    _check_momentum(job.recipe)
    _check_schedule(job.recipe)
    if job.recipe.updates_rows and job.workload != "recommender":
        raise BadJob(
            f"embedding_optimizer = {job.recipe.embedding_optimizer!r} at $.recipe, but workload = {job.workload!r} "
            "updates its embedding like its other weights: only recommender has gradients of rows.",
            "Use embedding_optimizer = 'same'.",
        )
    if job.recipe.label_smoothing and job.workload != "vision":
        raise BadJob(
            f"label_smoothing = {job.recipe.label_smoothing} at $.recipe, but workload = {job.workload!r} does not "
            "smooth labels: vision does.",
            "Use label_smoothing = 0.",
        )


def _check_optimizer(job: Job) -> None:
    """Raises `BadJob` for an unknown optimizer, or one without the requested implementation."""
    recipe, layout = job.recipe, job.layout
    optimizer_names = plugins.names("optimizers")
    if recipe.optimizer not in optimizer_names:
        raise BadJob(
            f"optimizer = {recipe.optimizer!r} at $.recipe is unknown.", nearest(recipe.optimizer, optimizer_names)
        )
    if recipe.optimizer_implementation == "fused" and not fuses(recipe, layout):
        raise BadJob(
            f"optimizer = 'sgd' with optimizer_implementation = 'fused' at $.recipe, but "
            f"torch's fused SGD kernel does not support the sharded weights of {layout}.",
            "Use optimizer_implementation = 'auto' or 'foreach'.",
        )


def _check_momentum(recipe: Recipe) -> None:
    """Raises `BadJob` for momentum of an optimizer that has none, or Nesterov's without momentum."""
    for field in ("momentum", "nesterov"):
        value = getattr(recipe, field)
        if value is not None and recipe.optimizer in ("adamw", "shampoo"):
            raise BadJob(
                f"{field} = {str(value).lower()} at $.recipe, but optimizer = {recipe.optimizer!r} has no {field}.",
                "Use beta1 and beta2." if recipe.optimizer == "adamw" else f"Remove {field}.",
            )
    if recipe.nesterov and recipe.optimizer == "sgd" and recipe.momentum_of("sgd") == 0:
        raise BadJob("nesterov = true at $.recipe, but momentum = 0.", "Use nesterov = false, or momentum = 0.9.")


def _check_schedule(recipe: Recipe) -> None:
    """Raises `BadJob` for a schedule that lacks its number of steps, or has a number of steps that it does not use."""
    style = recipe.lr_decay_style
    needed_key = {"linear": "decay_steps", "wsd": "decay_steps", "step": "lr_step_size"}.get(style)
    if needed_key and not getattr(recipe, needed_key):
        raise BadJob(
            f"lr_decay_style = {style!r} at $.recipe, but {needed_key} = 0.", f"Add {needed_key}, a number of steps."
        )
    used_keys = {
        "cosine": ("decay_steps",),
        "linear": ("decay_steps",),
        "wsd": ("decay_steps", "stable_steps"),
        "step": ("lr_step_size",),
    }.get(style, ())
    for key in ("decay_steps", "stable_steps", "lr_step_size"):
        if key not in used_keys and getattr(recipe, key):
            raise BadJob(
                f"{key} = {getattr(recipe, key)} at $.recipe, but lr_decay_style = {style!r} does not use it.",
                f"Use {key} = 0, or another lr_decay_style.",
            )


def fuses(recipe: Recipe, layout: Layout) -> bool:
    """Whether torch's fused kernel of this optimizer supports the weights of this layout."""
    return recipe.optimizer != "sgd" or not (shards(layout) or layout.tp > 1)


def update_implementation(recipe: Recipe, layout: Layout) -> Literal["fused", "foreach", "for-loop"]:
    """The implementation of the parameter update: the recipe's, or for `auto` the fastest that supports the layout's
    weights."""
    if recipe.optimizer_implementation != "auto":
        return recipe.optimizer_implementation
    return "fused" if fuses(recipe, layout) else "foreach"
