"""When a job whose samples are not sequences of tokens cannot be. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.errors import BadJob
from trainyard.job import Job


def check(job: Job) -> None:
    """Raises `BadJob` with what works instead."""
    if job.recipe.seq_len != 1:
        steps = job.recipe.tokens_per_step // job.recipe.seq_len
        raise BadJob(
            f"seq_len = {job.recipe.seq_len} at $.recipe.seq_len, but a token of {job.workload} is a sample.",
            f"Use seq_len = 1 and tokens_per_step = {steps}, the samples in a step.",
        )
    if job.recipe.dtype == "float8":
        raise BadJob(
            f"dtype = 'float8' at $.recipe, but {job.workload}'s products are not rounded to it.",
            "Use dtype = 'bfloat16'.",
        )


def check_split(job: Job, parts: Mapping[str, int]) -> None:
    """Raises `BadJob` where tp does not divide one of `parts`, which each of its ranks has its own of."""
    lay = job.layout
    for field in ("sequence_parallel", "loss_parallel"):
        if getattr(lay, field):
            raise BadJob(
                f"{field} = true at $.layout, but what {job.workload} has between its matrices stays whole.",
                f"Use {field} = false.",
            )
    for name, size in parts.items():
        if size % lay.tp:
            works = next(ways for ways in range(lay.tp, 0, -1) if not any(size % ways for size in parts.values()))
            raise BadJob(
                f"tp = {lay.tp} at $.layout: {name} {size:,} % tp {lay.tp} = {size % lay.tp}, but each rank has a "
                "whole and equal number of them.",
                f"Use tp = {works}.",
            )
