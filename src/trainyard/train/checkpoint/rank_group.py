"""The process group for checkpoints: all ranks, over gloo.

Separate from training's groups because saving overlaps with training, and the collectives of one group must not be
interleaved. Its timeout is long, since a rank may be reading or writing a large file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from trainyard.train.process_group import PATIENCE, Ranks

T = TypeVar("T")


class CheckpointGroup:
    """Object collectives over all ranks. Every rank constructs it and calls each method."""

    def __init__(self, ranks: Ranks) -> None:
        self.rank, self.world = ranks.rank, ranks.world
        self.group: dist.ProcessGroup | None = None
        if ranks.world > 1:
            self.group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=PATIENCE))

    @property
    def is_rank_0(self) -> bool:
        """Whether this is rank 0, which coordinates the saves."""
        return self.rank == 0

    def any(self, value: bool) -> bool:
        """Whether `value` is true on any rank. Collective."""
        if self.group is None:
            return value
        flag = torch.tensor(int(value))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.group)
        return bool(flag)

    def gather(self, value: T) -> list[T]:
        """One value per rank, in rank order, on rank 0; an empty list on the other ranks."""
        if self.group is None:
            return [value]
        gathered: list[T] = [value] * self.world
        dist.gather_object(value, gathered if self.is_rank_0 else None, group=self.group, group_dst=0)
        return gathered if self.is_rank_0 else []

    def all_gather(self, value: T) -> list[T]:
        """All-gathers `value`: returns the values of all ranks in rank order, on every rank. Collective."""
        if self.group is None:
            return [value]
        gathered: list[T] = [value] * self.world
        dist.all_gather_object(gathered, value, group=self.group)
        return gathered

    def scatter(self, values_by_rank: Sequence[T]) -> T:
        """Scatters rank 0's `values_by_rank`: each rank returns its own. Other ranks pass any sequence."""
        if self.group is None:
            return values_by_rank[0]
        received: list[T] = [cast(T, None)]
        dist.scatter_object_list(
            received, list(values_by_rank) if self.is_rank_0 else None, group=self.group, group_src=0
        )
        return received[0]

    def broadcast(self, value: T) -> T:
        """Returns rank 0's `value` on every rank; the other ranks' values are ignored. Collective."""
        if self.group is None:
            return value
        values = [value]
        dist.broadcast_object_list(values, group=self.group, group_src=0)
        return values[0]
