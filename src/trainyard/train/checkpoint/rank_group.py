"""All ranks, as those who save and load together: over the host's network, in a group of their own.

A group of its own, since saving goes on beside training, whose collectives must not be mixed with these; with patience,
since a rank may write or read a large file meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from trainyard.train.process_group import PATIENCE, Ranks

T = TypeVar("T")


class CheckpointGroup:
    """Made, and each method called, by all ranks alike."""

    def __init__(self, ranks: Ranks) -> None:
        self.rank, self.world = ranks.rank, ranks.world
        self.group: dist.ProcessGroup | None = None
        if ranks.world > 1:
            self.group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=PATIENCE))

    @property
    def first(self) -> bool:
        return self.rank == 0

    def any(self, mine: bool) -> bool:
        """Whether it is so on some rank."""
        if self.group is None:
            return mine
        flag = torch.tensor(int(mine))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.group)
        return bool(flag)

    def gather(self, mine: T) -> list[T]:
        """Every rank's, by rank, on the first; empty elsewhere."""
        if self.group is None:
            return [mine]
        told: list[T] = [mine] * self.world
        dist.gather_object(mine, told if self.first else None, group=self.group, group_dst=0)
        return told if self.first else []

    def all_gather(self, mine: T) -> list[T]:
        """Every rank's, by rank, on every rank."""
        if self.group is None:
            return [mine]
        told: list[T] = [mine] * self.world
        dist.all_gather_object(told, mine, group=self.group)
        return told

    def scatter(self, each: Sequence[T]) -> T:
        """Of what the first has for each rank, this rank's."""
        if self.group is None:
            return each[0]
        mine: list[T] = [cast(T, None)]
        dist.scatter_object_list(mine, list(each) if self.first else None, group=self.group, group_src=0)
        return mine[0]

    def broadcast(self, value: T) -> T:
        """The first rank's."""
        if self.group is None:
            return value
        told = [value]
        dist.broadcast_object_list(told, group=self.group, group_src=0)
        return told[0]
