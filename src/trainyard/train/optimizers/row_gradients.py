"""Gradients of the rows of embedding tables that a step looked up. The cost grows with these rows, not with the table.

Shapes: K looked-up rows, U distinct ones, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainyard.train.parallel.local_part import local_part
from trainyard.train.task import HasRowTables


class TableGradient(NamedTuple):
    """Gradients (U, D) of the rows `ids` (U) of `weight`, by their number on this rank. No id repeats."""

    weight: nn.Parameter
    ids: Tensor
    values: Tensor


class RowGradients:
    """The gradients of a step, of all tables of a module. `keys` (U): the rows, ascending, numbered over this rank's
    parts of all tables in order; `values` (U, D): the sum of the gradients of each."""

    def __init__(self, module: HasRowTables) -> None:
        self.tables = module.row_tables()
        self.replicas = module.replicas
        counts = torch.tensor([0, *(len(local_part(table.weight)) for table in self.tables)])
        self.first_keys: list[int] = counts.cumsum(0).tolist()
        """The first key of each table, then the number of keys."""
        self.clear()

    def clear(self) -> None:
        """Forgets the gradients, and the lookups that have none yet."""
        for table in self.tables:
            table.looked_up.clear()
        weight = local_part(self.tables[0].weight)
        self.keys = torch.empty(0, dtype=torch.int64, device=weight.device)
        self.values = weight.new_empty(0, weight.shape[1])

    def collect(self) -> None:
        """Sums the gradients of repeated rows over all lookups since `clear`, and averages them over the replicas. Call
        once after the backward passes. Collective if there are replicas. Waits for the device."""
        gradients = [
            (leaf.grad._indices()[0] + first_key, leaf.grad._values())
            for table, first_key in zip(self.tables, self.first_keys)
            for leaf in table.looked_up
            if leaf.grad is not None
        ]
        if gradients:
            self.keys, self.values = self._sum_repeated(*map(torch.cat, zip(*gradients)))
        if self.replicas is not None:
            keys, values = all_gather_unequal((self.keys, self.values), self.replicas)
            self.keys, self.values = self._sum_repeated(keys, values / self.replicas.size())
        for table in self.tables:
            table.looked_up.clear()

    def scale(self, factor: Tensor) -> None:
        """Multiplies the gradients by the scalar tensor `factor`."""
        self.values.mul_(factor.to(self.values.device))

    def by_table(self) -> Iterator[TableGradient]:
        """Yields the gradients of each table that has some."""
        bounds = torch.tensor(self.first_keys, device=self.keys.device)
        ends: list[int] = torch.searchsorted(self.keys, bounds).tolist()
        for table, first_key, (start, end) in zip(self.tables, self.first_keys, pairwise(ends)):
            if start < end:
                yield TableGradient(table.weight, self.keys[start:end] - first_key, self.values[start:end])

    def _sum_repeated(self, keys_K: Tensor, values_KD: Tensor) -> tuple[Tensor, Tensor]:
        """Distinct keys (U), ascending, and the sums (U, D) of their values, in the order of the arguments."""
        shape = (self.first_keys[-1], values_KD.shape[1])
        summed = torch.sparse_coo_tensor(keys_K[None], values_KD, shape, check_invariants=False).coalesce()
        return summed.indices()[0], summed.values()


def find(modules: Sequence[nn.Module]) -> list[HasRowTables]:
    """The submodules with tables that have gradients of rows."""
    parts = [part for module in modules for part in module.modules() if isinstance(part, HasRowTables)]
    return [part for part in parts if part.row_tables()]


def all_gather_unequal(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    """Concatenates each of `tensors` over all ranks along the first dimension, whose length may differ between ranks,
    but not between the tensors of a rank. Collective. Waits for the device once."""
    lengths = tensors[0].new_empty(group.size(), dtype=torch.int64)
    dist.all_gather(list(lengths.split(1)), lengths.new_full((1,), len(tensors[0])), group=group)
    counts: list[int] = lengths.tolist()
    return [_all_gather_padded(tensor, counts, group) for tensor in tensors]


def _all_gather_padded(part: Tensor, counts: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """Concatenates the parts of all ranks along the first dimension. `counts`: its length on each rank."""
    padded = part.new_zeros(max(counts), *part.shape[1:])
    padded[: len(part)] = part
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([gathered[:count] for gathered, count in zip(parts, counts)])
