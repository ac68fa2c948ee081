"""Which layouts replicate and which shard weights, and constraints on ZeRO-1 and batch shares. Needs no torch.

In messages, `$` is the root of the job file: `$.layout` is its table [layout].
"""

from __future__ import annotations

from msgspec.structs import replace

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
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
    """Raises `BadJob`, with the nearest valid layout, for ZeRO-1 with an axis that splits weights, an FSDP setting that
    the layout cannot have, or unequal batch shares of ranks that communicate in each micro-batch."""
    layout = job.layout
    _check_resharding(job)
    _check_shares(job)
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
    """Raises `BadJob` if `reshard_after_forward = "always"` is used without ZeRO-3, or with a pipeline schedule that
    has several stages per rank or splits the backward pass."""
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
            f"reshard_after_forward = 'always' at $.layout with schedule = {schedule!r} at $.recipe, which puts "
            "several stages on a rank, or gathers the weights twice in the backward pass.",
            "Use schedule = '1f1b' or 'gpipe', or reshard_after_forward = 'default'.",
        )


def _check_shares(job: Job) -> None:
    """Raises `BadJob` for unequal batch shares with pp, or of ranks that shard the same weights if those communicate in
    each micro-batch or cannot keep gathered weights and whole gradients."""
    layout = job.layout
    if layout.has_equal_shares:
        return
    shares = f"batch_shares = {list(layout.batch_shares)}"
    if layout.pp > 1:
        raise BadJob(
            f"{shares} with pp = {layout.pp} at $.layout, but all pipelines run the same number of micro-batches.",
            "Use equal shares, or pp = 1.",
        )
    if not (layout.shard_groups_differ and shards(layout)):
        return
    differing = f"{shares} at $.layout gives the {layout.dp_shard} ranks of dp_shard different numbers of micro-batches"
    per_group = f"equal shares within each {layout.dp_shard} consecutive replicas, as with [3, 1] and dp_replicate = 2"
    if layout.ep > 1:
        raise BadJob(
            f"{differing}, but with ep = {layout.ep} they exchange tokens in each of them.",
            f"Use {per_group}, or ep = 1.",
        )
    if layout.reshards:
        raise BadJob(
            f"{differing}, but with zero = {layout.zero} they gather their weights for each of them.",
            f"Use zero = 2, which keeps the weights of a step gathered, or {per_group}.",
        )
    if job.recipe.offload:
        raise BadJob(
            f"{differing}, but with offload = true at $.recipe no device keeps the gathered weights and the unsharded "
            "gradients of a step, as those ranks must.",
            f"Use offload = false, or {per_group}.",
        )
