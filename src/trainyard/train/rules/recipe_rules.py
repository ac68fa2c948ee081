"""Constraints on a recipe. Needs no torch.

In messages, `$` is the root of the job file: `$.layout` is its table [layout].
"""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.train.rules.data_parallel_rules import shards

DTYPES = ("float32", "tf32", "bfloat16", "float16", "float8")


def check(job: Job) -> None:
    """Raises `BadJob`, with the nearest valid recipe, for settings that this package cannot train with."""
    _check_dtype(job)
    _check_offload(job)
    layout, recipe = job.layout, job.recipe
    if recipe.compile == "whole" and layout.pp > 1:
        raise BadJob(
            f"compile = 'whole' at $.recipe with pp = {layout.pp} at $.layout, but no rank has the whole model.",
            "Use compile = true: each block.",
        )
    if recipe.rolls_back and not job.checkpoint.interval:
        key = "on_non_finite" if recipe.on_non_finite == "rollback" else "on_loss_spike"
        raise BadJob(
            f"{key} = 'rollback' at $.recipe, but interval = 0 at $.checkpoint: there is no checkpoint to go back to.",
            "Set [checkpoint] interval = N, or use 'skip'.",
        )
    if recipe.recompute_modules or recipe.overlap_dispatch:
        setting = "recompute_modules" if recipe.recompute_modules else "overlap_dispatch"
        raise BadJob(
            f"{setting} at $.recipe is a setting of Megatron Core, which trainyard plan predicts and trainyard's own "
            "trainer does not have.",
            f"Leave out {setting}.",
        )
    if recipe.activation_checkpoint == "none" and recipe.activation_checkpoint_every > 1:
        raise BadJob(
            f"activation_checkpoint_every = {recipe.activation_checkpoint_every} at $.recipe, but "
            "activation_checkpoint = 'none': no block is recomputed.",
            "Use activation_checkpoint = 'full' or 'selective'.",
        )


def _check_dtype(job: Job) -> None:
    """Raises `BadJob` for a dtype that cannot be trained, or not with this layout."""
    dtype, layout = job.recipe.dtype, job.layout
    if dtype not in DTYPES:
        unscaled = DTYPES if layout.tp == 1 else DTYPES[:-1]
        raise BadJob(
            f"dtype = {dtype!r} at $.recipe is not supported for training.",
            f"Use one of {', '.join(map(repr, unscaled))}.",
        )
    if dtype == "float8" and layout.tp > 1:
        raise BadJob(
            f"dtype = 'float8' at $.recipe with tp = {layout.tp} at $.layout, but scaling is per tensor, and each of "
            f"its {layout.tp} parts would have another scale.",
            "Use dtype = 'bfloat16', or tp = 1.",
        )


def _check_offload(job: Job) -> None:
    """Raises `BadJob` for offloading with a layout that does not shard the weights by data parallelism alone."""
    layout = job.layout
    other_axes = [f"{axis} = {getattr(layout, axis)}" for axis in ("tp", "cp", "pp", "ep") if getattr(layout, axis) > 1]
    if job.recipe.offload and other_axes:
        raise BadJob(
            f"offload = true at $.recipe with {', '.join(other_axes)} at $.layout, but weights can be offloaded with "
            "pure data parallelism only.",
            f"Use offload = false, or dp_shard = {layout.ranks} and no other axis.",
        )
    if job.recipe.offload and not shards(layout):
        ranks = max(2, layout.batch_ranks)
        raise BadJob(
            f"offload = true at $.recipe, but {layout} does not shard weights: each device needs all of them.",
            f"Use offload = false, or dp_shard = {ranks}, zero = 3.",
        )
