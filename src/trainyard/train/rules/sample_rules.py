"""Constraints on jobs whose samples are not token sequences. Needs no torch.

In messages, `$` is the root of the job file: `$.layout` is its table [layout].
"""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.units import show_divisors


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


def check_split(job: Job, size_by_name: Mapping[str, int]) -> None:
    """Raises `BadJob` if tp does not divide one of the sizes (name -> number of heads, columns, ...) that are split
    over its ranks, or for a setting that this workload's tensor parallelism lacks."""
    layout = job.layout
    for field in ("sequence_parallel", "loss_parallel"):
        if getattr(layout, field):
            raise BadJob(
                f"{field} = true at $.layout, but {job.workload} keeps the activations between its matrices unsplit.",
                f"Use {field} = false.",
            )
    for name, size in size_by_name.items():
        if size % layout.tp:
            valid_tp = next(
                tp for tp in range(layout.tp, 0, -1) if not any(size % tp for size in size_by_name.values())
            )
            raise BadJob(
                f"tp = {layout.tp} at $.layout: {name} {size:,} % tp {layout.tp} = {size % layout.tp}, but each rank "
                "needs a whole and equal number.",
                f"Use tp = {valid_tp}; degrees that divide {', '.join(size_by_name)}: "
                f"{show_divisors(list(size_by_name.values()))}.",
            )
