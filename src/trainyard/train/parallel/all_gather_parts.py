"""All-gather of tensors that have one owner each, such as the parameters that ZeRO-1 has updated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainyard.train.parallel.differentiable_collectives import all_gather

BUCKET_ELEMENTS = 1 << 25
"""Elements that one collective gathers from all ranks; two buckets are in flight."""
_PADDING = 0.05
"""Largest padding of the all-gathers, as a fraction of all elements."""


class _Bucket(NamedTuple):
    """An all-gather in progress of elements `start` to `end` of each rank's part. `received`: (ranks, elements)."""

    start: int
    end: int
    received: Tensor
    work: dist.Work


def all_gather_parts(parts: Sequence[Sequence[Tensor]], group: dist.ProcessGroup) -> None:
    """Overwrites all tensors by their owners' values. `parts`: the tensors that each rank of `group` owns, by rank; of
    one dtype, dense in memory, and with the same sizes on every rank. Collective.

    A part is a sequence of elements, cut into buckets that are all-gathered one after another, the next one while the
    last one is copied. The elements by which a part is much longer than the others are broadcast by its owner.
    """
    rank, flat_parts = group.rank(), [[_flat(tensor) for tensor in part] for part in parts]
    lengths = [sum(tensor.numel() for tensor in part) for part in flat_parts]
    gathered = gathered_length(tuple(lengths))
    broadcasts = [
        dist.broadcast(piece, group=group, group_src=owner, async_op=True)
        for owner, part in enumerate(flat_parts)
        for piece in _pieces(part, gathered, lengths[owner])
    ]
    bucket: _Bucket | None = None
    step = max(1, BUCKET_ELEMENTS // len(parts))
    for start in range(0, gathered, step):
        following = _gather(flat_parts, start, min(start + step, gathered), group)
        if bucket is not None:
            _copy_out(bucket, flat_parts, rank)
        bucket = following
    if bucket is not None:
        _copy_out(bucket, flat_parts, rank)
    for work in broadcasts:
        if work is not None:
            work.wait()


@lru_cache
def gathered_length(lengths: tuple[int, ...]) -> int:
    """How many elements of each part to all-gather, given the parts' lengths: the largest of the lengths for which
    shorter parts are padded by few elements."""
    few = _PADDING * sum(lengths)
    return max(length for length in lengths if sum(max(0, length - other) for other in lengths) <= few)


def _gather(parts: Sequence[Sequence[Tensor]], start: int, end: int, group: dist.ProcessGroup) -> _Bucket:
    """Starts the all-gather of elements `start` to `end` of each part."""
    pieces = list(_pieces(parts[group.rank()], start, end))
    padding = end - start - sum(piece.numel() for piece in pieces)
    some_tensor = next(tensor for part in parts for tensor in part)  # this rank's part may be empty
    sent = torch.cat([*pieces, some_tensor.new_zeros(padding)])
    received = sent.new_empty(len(parts) * (end - start))
    work = all_gather(received, sent, group=group, async_op=True)
    assert work is not None  # noqa: S101 - as this rank is in the group
    return _Bucket(start, end, received.view(len(parts), -1), work)


def _copy_out(bucket: _Bucket, parts: Sequence[Sequence[Tensor]], rank: int) -> None:
    """Ends an all-gather and copies the other ranks' values to `parts`."""
    bucket.work.wait()
    targets: list[Tensor] = []
    sources: list[Tensor] = []
    for owner, part in enumerate(parts):
        if owner != rank and (pieces := list(_pieces(part, bucket.start, bucket.end))):
            sizes = [piece.numel() for piece in pieces]
            targets += pieces
            sources += bucket.received[owner, : sum(sizes)].split(sizes)
    if targets:
        torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]


def _pieces(part: Sequence[Tensor], start: int, end: int) -> Iterator[Tensor]:
    """Views of elements `start` to `end` of a part, one view per tensor; fewer if the part is shorter."""
    at = 0
    for tensor in part:
        first, last = max(start - at, 0), min(end - at, tensor.numel())
        if first < last:
            yield tensor[first:last]
        at += tensor.numel()


def _flat(tensor: Tensor) -> Tensor:
    """The elements of a tensor in the order of its memory, as a view."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))
