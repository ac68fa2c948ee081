"""Which layouts replicate weights, and which shard them; when ZeRO-1 cannot be. No torch here."""

from __future__ import annotations

from msgspec.structs import replace

from trainyard.errors import BadJob
from trainyard.job import Job, Layout


def divides_state(layout: Layout) -> bool:
    """Whether weights and gradients are replicated over dp_shard, and the optimizer's state is not."""
    return layout.zero == 1 and layout.dp_shard > 1


def replicates(layout: Layout) -> bool:
    """Whether every rank has all weights, and DistributedDataParallel does it all: it knows no other axis."""
    only_data = layout.batch_ranks == layout.ranks > 1 and layout.ep == 1
    return only_data and (layout.dp_shard == 1 or divides_state(layout))


def shards(layout: Layout) -> bool:
    """Whether weights are sharded, or replicated beside another axis: the ranks of `cp` share them as those of
    `dp_shard` do, since each has tokens of its own."""
    return not replicates(layout) and layout.token_ranks > 1


def check(job: Job) -> None:
    """Raises `BadJob` with the reason and the nearest layout that works."""
    layout = job.layout
    if divides_state(layout) and not replicates(layout):
        others = [f"{axis} = {getattr(layout, axis)}" for axis in ("tp", "cp", "pp", "ep") if getattr(layout, axis) > 1]
        raise BadJob(
            f"zero = 1 with {', '.join(others)} at $.layout, but where only optimizer state is divided each rank has "
            "all weights, and those axes divide them.",
            f"Use zero = 2: {replace(layout, zero=2)}.",
        )
