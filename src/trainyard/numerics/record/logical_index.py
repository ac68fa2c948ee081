"""Positions of a shard's elements in the logical tensor, in row-major order."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from trainyard.errors import BadInput
from trainyard.numerics.tensor_record import Shard


class LogicalIndex(NamedTuple):
    """A block of a logical tensor: its first flat index, and extent and stride (in the logical tensor) per dimension.
    Dimensions that are contiguous in the logical tensor are merged, so that a contiguous block has one dimension."""

    start: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.extents)

    @property
    def is_contiguous(self) -> bool:
        return len(self.extents) == 1 and self.strides == (1,)

    def row(self) -> LogicalIndex:
        """The first row: the block without its first dimension."""
        return LogicalIndex(self.start, self.extents[1:], self.strides[1:])

    def flat(self, first: int, last: int, device: torch.device) -> Tensor:
        """Flat logical indices, int64, of the block's elements `first` to `last` (exclusive) in the block's order."""
        rest = torch.arange(first, last, device=device)
        indices = torch.full_like(rest, self.start)
        for extent, stride in zip(reversed(self.extents), reversed(self.strides)):
            indices += rest % extent * stride
            rest = rest // extent
        return indices

    def local_positions(self, indices: list[int]) -> list[int]:
        """Positions, in the block's order, of those elements with these flat logical indices that the block holds."""
        if self.is_contiguous:
            held = range(self.start, self.start + self.elements)
            return [index - self.start for index in indices if index in held]
        return [at for at in map(self._local_position, indices) if at is not None]

    def _local_position(self, index: int) -> int | None:
        """The position in the block's order of an element; None if the block does not hold it."""
        rest, position = index - self.start, 0
        if rest < 0:
            return None
        for extent, stride in zip(self.extents, self.strides):
            at, rest = divmod(rest, stride)
            if at >= extent:
                return None
            position = position * extent + at
        return position if rest == 0 else None

    def of_pairs(self) -> LogicalIndex:
        """The block if each element is a pair of two numbers."""
        if self.is_contiguous:
            return LogicalIndex(2 * self.start, (2 * self.elements,), (1,))
        return LogicalIndex(2 * self.start, (*self.extents, 2), (*(2 * stride for stride in self.strides), 1))


def index_block(shape: tuple[int, ...], shard: Shard | None) -> LogicalIndex:
    """The block of the logical tensor of `shape` that `shard` is; None is the whole tensor. A shard of one dimension of
    a tensor with several is a range of its flattened elements, as flat FSDP has them. Raises `BadInput`."""
    if shard is None:
        return LogicalIndex(0, (prod(shape),), (1,))
    if len(shard.shape) == 1 and len(shape) != 1:
        shape = (prod(shape),)
    _check(shape, shard)
    start, stride, merged = 0, 1, [(1, 1)]
    for size, extent, offset in zip(reversed(shape), reversed(shard.shape), reversed(shard.offset)):
        start += offset * stride
        inner_extent, inner_stride = merged[-1]
        if stride == inner_extent * inner_stride or extent == 1 or inner_extent == 1:
            merged[-1] = (inner_extent * extent, inner_stride if inner_extent != 1 else stride if extent != 1 else 1)
        else:
            merged.append((extent, stride))
        stride *= size
    extents, strides = zip(*reversed(merged))
    return LogicalIndex(start, extents, strides)


def _check(shape: tuple[int, ...], shard: Shard) -> None:
    """Raises `BadInput` if the shard does not lie within the logical tensor."""
    if not len(shape) == len(shard.shape) == len(shard.offset) or any(
        offset < 0 or extent < 0 or offset + extent > size
        for size, extent, offset in zip(shape, shard.shape, shard.offset)
    ):
        raise BadInput(
            f"A shard of shape {shard.shape} at offset {shard.offset} is not within a tensor of shape {shape}.",
            "Give offset and shape of the shard in elements of the logical tensor.",
        )
