"""Whether a job can be trained, and if not, what to change. Needs no torch.

In messages, `$` is the root of the job file: `$.layout` is its table [layout].
"""

from __future__ import annotations

from collections.abc import Collection

from trainyard import words
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.train.rules import (
    context_parallel_rules,
    data_parallel_rules,
    expert_parallel_rules,
    optimizer_rules,
    pipeline_rules,
    recipe_rules,
    tensor_parallel_rules,
)


def check(job: Job, axes: Collection[str] = tuple(words.AXES)) -> None:
    """Raises `BadJob` with the reason and a valid alternative. `axes`: the parallel axes that the workload supports."""
    refused_axes = [f"{axis} = {getattr(job.layout, axis)}" for axis in words.AXES if getattr(job.layout, axis) > 1]
    refused_axes = [axis_size for axis_size in refused_axes if axis_size.split()[0] not in axes]
    if refused_axes:
        valid_layout = Layout(
            dp_replicate=job.layout.dp_replicate, dp_shard=job.layout.ranks // job.layout.dp_replicate
        )
        raise BadJob(
            f"bad layout at $.layout: {', '.join(refused_axes)}, but {job.workload} supports {', '.join(axes)} only.",
            f"On the same {job.layout.ranks} ranks, {valid_layout} works.",
        )
    for rule in (
        tensor_parallel_rules,
        context_parallel_rules,
        pipeline_rules,
        expert_parallel_rules,
        data_parallel_rules,
        recipe_rules,
        optimizer_rules,
    ):
        rule.check(job)
