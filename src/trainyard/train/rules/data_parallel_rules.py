"""Which layouts replicate and which shard weights, and constraints on ZeRO-1. Needs no torch.

In messages, `$` is the root of the job file: `$.layout` is its table [layout].
"""

from __future__ import annotations

from msgspec.structs import replace

from trainyard.errors import BadJob
from trainyard.job import Job, Layout
from trainyard.train.rules.pipeline_rules import ONE_STAGE


def divides_state(layout: Layout) -> bool:
    """Whether only the optimizer state is sharded over dp_shard (ZeRO-1)."""
    return layout.zero == 1 and layout.dp_shard > 1


def replicates(layout: Layout) -> bool:
    """Whether every rank has all weights and DistributedDataParallel is used, which supports no other axis."""
    only_data = layout.batch_ranks == layout.ranks > 1 and layout.ep == 1
    return only_data and (layout.dp_shard == 1 or divides_state(layout))


def shards(layout: Layout) -> bool:
    """Whether FSDP2 is used: weights are sharded, or replicated in combination with another axis. `cp` shards weights
    like `dp_shard`, since its ranks have different tokens."""
    return not replicates(layout) and layout.token_ranks > 1


def check(job: Job) -> None:
    """Raises `BadJob`, with the nearest valid layout, for ZeRO-1 with an axis that splits weights, or an FSDP setting
    that the layout cannot have."""
    layout = job.layout
    _check_resharding(job)
    if divides_state(layout) and not replicates(layout):
        other_axes = [
            f"{axis} = {getattr(layout, axis)}" for axis in ("tp", "cp", "pp", "ep") if getattr(layout, axis) > 1
        ]
        raise BadJob(
            f"zero = 1 with {', '.join(other_axes)} at $.layout, but ZeRO-1 keeps all weights on each rank, and "
            "those axes split them.",
            f"Use zero = 2: {replace(layout, zero=2)}.",
        )


def _check_resharding(job: Job) -> None:
    """Raises `BadJob` if weights are to be resharded that ZeRO keeps, or between the parts of a backward pass."""
    layout, schedule = job.layout, job.recipe.schedule
    if layout.reshard_after_forward != "always":
        return
    if layout.zero < 3:
        raise BadJob(
            f"reshard_after_forward = 'always' with zero = {layout.zero} at $.layout, but only ZeRO-3 shards weights "
            "between forward and backward pass.",
            "Use zero = 3, or reshard_after_forward = 'default'.",
        )
    if layout.pp > 1 and schedule not in ONE_STAGE:
        raise BadJob(
            f"reshard_after_forward = 'always' at $.layout with schedule = {schedule!r} at $.recipe, whose stages "
            "share their rank, or whose backward pass needs gathered weights twice.",
            "Use schedule = '1f1b' or 'gpipe', or reshard_after_forward = 'default'.",
        )
