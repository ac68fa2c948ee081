"""The tensors of a job from the records of its ranks.

Sketches, hashes, means and squared norms of the shards of a tensor add up to those of the tensor. Parameters, their
gradients and states of the optimizer that several ranks hold are replicas: they must be equal bit by bit. Other tensors
that several ranks hold whole, such as activations of different micro-batches, stay apart by rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, prod, sqrt
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from trainyard.numerics.record_files import RankRecord
from trainyard.numerics.tensor_record import BUCKETS, NonFinite, TensorKey, TensorRecord

_OF_PARAMETERS = ("weight", "gradient", "optimizer_state")
"""Roles of tensors that are equal on all ranks that hold the same part. A gradient without a name is that of an output.
"""
ALL_RANKS = -1
"""The rank of a tensor that ranks hold together, or equally."""


def is_of_parameter(key: TensorKey) -> bool:
    """Whether a tensor is a weight, its gradient, or a state of the optimizer for it."""
    return key.role in _OF_PARAMETERS and bool(key.name)


def is_initial_weight(key: TensorKey) -> bool:
    """Whether a tensor is a weight before the first call of its model, not after a step of the optimizer."""
    return key.role == "weight" and key.phase == "forward"


def has_other_size(a: TensorRecord, b: TensorRecord) -> bool:
    """Whether two tensors have other numbers of elements. Tensors of other shapes are comparable if they have as many,
    since their elements are summarised in row-major order: a view of a tensor has the sketch of the tensor."""
    return a.shape != b.shape and prod(a.shape) != prod(b.shape)


class LogicalKey(NamedTuple):
    """`rank`: the rank that holds the tensor alone, or `ALL_RANKS`."""

    tensor: TensorKey
    rank: int


class DifferingReplicas(NamedTuple):
    """Ranks that should hold equal values. `ranks`: the first rank, and those that differ from it."""

    key: LogicalKey
    ranks: tuple[int, ...]


class LogicalTensors(NamedTuple):
    """`tensors`: in order of execution, steps in order. `differing`: replicas that are not equal, in the same order.
    `incomplete`: tensors some of whose shards no rank recorded."""

    tensors: dict[LogicalKey, TensorRecord]
    differing: tuple[DifferingReplicas, ...]
    incomplete: tuple[LogicalKey, ...]


class _Part(NamedTuple):
    rank: int
    record: TensorRecord


def merge_ranks(ranks: Sequence[RankRecord]) -> LogicalTensors:
    """Merges the records of all ranks of one run."""
    parts: dict[TensorKey, list[_Part]] = {}
    for rank in ranks:
        for record in rank.tensors:
            parts.setdefault(record.key, []).append(_Part(rank.header.rank, record))
    tensors: dict[LogicalKey, TensorRecord] = {}
    differing: list[DifferingReplicas] = []
    incomplete: list[LogicalKey] = []
    for key, held in parts.items():
        if len(ranks) > 1 and not is_of_parameter(key) and all(part.record.shard is None for part in held):
            tensors.update({LogicalKey(key, part.rank): part.record for part in held})
            continue
        logical_key = LogicalKey(key, ALL_RANKS)
        distinct, unequal = _distinct_parts(held)
        if unequal:
            differing.append(DifferingReplicas(logical_key, unequal))
        if _is_complete(distinct):
            tensors[logical_key] = _add_parts(distinct)
        else:
            incomplete.append(logical_key)
    ordered = sorted(tensors.items(), key=lambda item: (item[1].step, item[1].index))
    order = {key: position for position, (key, _) in enumerate(ordered)}
    differing.sort(key=lambda replicas: order.get(replicas.key, len(order)))
    return LogicalTensors(dict(ordered), tuple(differing), tuple(incomplete))


def _distinct_parts(held: Sequence[_Part]) -> tuple[list[TensorRecord], tuple[int, ...]]:
    """A record of each part of a tensor, and the ranks of the first replicas that differ. Summands of a tensor have the
    same offset and are not replicas, unless they are equal."""
    first: dict[tuple[object, ...], _Part] = {}
    unequal: tuple[int, ...] = ()
    for part in held:
        shard = part.record.shard
        is_summand = shard is not None and shard.partial
        identity = (shard.offset, shard.shape) if shard else ()
        known = first.setdefault((*identity, part.record.hash) if is_summand else identity, part)
        if known.record.hash != part.record.hash and (not unequal or unequal[0] == known.rank):
            unequal = (*(unequal or (known.rank,)), part.rank)
    return [part.record for part in first.values()], unequal


def _is_complete(parts: Sequence[TensorRecord]) -> bool:
    """Whether the parts have as many elements as the tensor."""
    shards = [part.shard for part in parts if part.shard is not None]
    summands = [shard for shard in shards if shard.partial]
    if not shards or summands:
        return True
    return sum(prod(shard.shape) for shard in shards) == prod(parts[0].shape)


def _add_parts(parts: Sequence[TensorRecord]) -> TensorRecord:
    """The record of the tensor whose distinct parts are given."""
    if len(parts) == 1:
        return parts[0] if parts[0].shard is None else replace(parts[0], shard=None)
    sketch = np.sum([np.frombuffer(part.sketch or bytes(8 * BUCKETS)) for part in parts], axis=0)
    is_sum = any(part.shard is not None and part.shard.partial for part in parts)
    counts = [part.nonfinite or NonFinite() for part in parts]
    nonfinite = NonFinite(
        nan=sum(count.nan for count in counts),
        positive=sum(count.positive for count in counts),
        negative=sum(count.negative for count in counts),
        masked=all(count.masked for count in counts if count.negative),
    )
    return replace(
        parts[0],
        shard=None,
        hash="" if is_sum else _add_hashes([part.hash for part in parts]),
        norm=sqrt(float(sketch @ sketch)) if is_sum else hypot(*(part.norm for part in parts)),
        maximum=max(part.maximum for part in parts),
        mean=sum(part.mean for part in parts),
        nonfinite=nonfinite if nonfinite.nan or nonfinite.positive or nonfinite.negative else None,
        sketch=sketch.tobytes() if any(part.sketch for part in parts) else b"",
        sample=b"",
    )


def _add_hashes(hashes: Sequence[str]) -> str:
    """The hash of a tensor from those of its shards, which are sums over elements modulo 2^64; empty if one is
    unknown."""
    try:
        return f"{sum(int(text, 16) for text in hashes) % 2**64:016x}"
    except ValueError:
        return ""
