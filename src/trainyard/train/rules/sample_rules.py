"""Constraints on jobs whose samples are not token sequences. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.errors import BadJob
from trainyard.job import Job


def check(job: Job) -> None:
    """Raises `BadJob` if a sample is not one token or the dtype is float8."""
    if job.recipe.seq_len != 1:
        steps = job.recipe.tokens_per_step // job.recipe.seq_len
        raise BadJob(
            f"seq_len = {job.recipe.seq_len} at $.recipe.seq_len, but a sample of {job.workload} is one token.",
            f"Use seq_len = 1 and tokens_per_step = {steps}, the samples per step.",
        )
    if job.recipe.dtype == "float8":
        raise BadJob(
            f"dtype = 'float8' at $.recipe, but {job.workload} does not support float8.",
            "Use dtype = 'bfloat16'.",
        )


def check_split(job: Job, parts: Mapping[str, int]) -> None:
    """Raises `BadJob` if tp does not divide one of `parts` (name to size), which are split over its ranks."""
    lay = job.layout
    for field in ("sequence_parallel", "loss_parallel"):
        if getattr(lay, field):
            raise BadJob(
                f"{field} = true at $.layout, but {job.workload} keeps the activations between its matrices unsplit.",
                f"Use {field} = false.",
            )
    for name, size in parts.items():
        if size % lay.tp:
            valid_tp = next(ways for ways in range(lay.tp, 0, -1) if not any(size % ways for size in parts.values()))
            raise BadJob(
                f"tp = {lay.tp} at $.layout: {name} {size:,} % tp {lay.tp} = {size % lay.tp}, but each rank needs "
                "a whole and equal number.",
                f"Use tp = {valid_tp}.",
            )
