"""Tensors that each rank holds whole, such as activations, in records of other layouts.

Ranks correspond to each other in equal layouts only. In others, a tensor that is equal on all ranks of a record is
compared as one; activations of different micro-batches are not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from trainyard.numerics.compare.logical_tensors import ALL_RANKS, LogicalKey
from trainyard.numerics.tensor_record import RecordHeader, TensorKey, TensorRecord

Tensors = Mapping[LogicalKey, TensorRecord]


def ranks_correspond(a: RecordHeader, b: RecordHeader) -> bool:
    """Whether rank r of one side computes what rank r of the other computes."""
    return a.ranks == b.ranks and a.layout == b.layout


def equal_on_all_ranks(tensors: Tensors) -> frozenset[TensorKey]:
    """The tensors that several ranks hold whole, with equal bits."""
    hashes: dict[TensorKey, set[str]] = defaultdict(set)
    for key, record in tensors.items():
        if key.rank != ALL_RANKS:
            hashes[key.tensor].add(record.hash)
    return frozenset(tensor for tensor, distinct in hashes.items() if len(distinct) == 1 and "" not in distinct)


def join_ranks(tensors: Tensors, equal: frozenset[TensorKey]) -> dict[LogicalKey, TensorRecord]:
    """The tensors of all ranks, and of those in `equal` the record of the first rank; others are left out."""
    joined: dict[LogicalKey, TensorRecord] = {}
    for key, record in tensors.items():
        if key.rank == ALL_RANKS or key.tensor in equal:
            joined.setdefault(LogicalKey(key.tensor, ALL_RANKS), record)
    return joined
