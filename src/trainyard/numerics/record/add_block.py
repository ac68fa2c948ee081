"""Adds a block of a logical tensor to its sums, in chunks, so that additional memory is bounded."""

from __future__ import annotations

import torch
from torch import Tensor

from trainyard.numerics.record.logical_index import LogicalIndex
from trainyard.numerics.record.logical_order import read_range
from trainyard.numerics.record.sketch import PERIOD
from trainyard.numerics.record.sums import Sums

_LEAST_ROW = 1 << 12
"""Elements of a row for which it is worthwhile to add the row alone."""
_LEAST_DENSITY = 1 / 8
"""Fraction of a range that a block has to hold for it to be worthwhile to add the whole range."""


def add_block(sums: Sums, values: Tensor, block: LogicalIndex, chunk: int) -> None:
    """Adds `values`, which are `block` of the logical tensor, `chunk` elements at a time."""
    row = block.row()
    if not values.numel():
        return
    if block.is_contiguous:
        _add_range(sums, values, block.start, chunk)
    elif block.strides[0] <= chunk and row.elements >= _LEAST_DENSITY * block.strides[0]:
        _add_with_zeros(sums, values, block, chunk)
    elif row.elements >= _LEAST_ROW:
        for at in range(block.extents[0]):
            part = read_range(values, at * row.elements, (at + 1) * row.elements)
            add_block(sums, part, row._replace(start=row.start + at * block.strides[0]), chunk)
    else:
        for at in range(0, values.numel(), chunk):
            end = min(at + chunk, values.numel())
            sums.add_at(read_range(values, at, end), block.flat(at, end, values.device))


def _add_range(sums: Sums, values: Tensor, start: int, chunk: int) -> None:
    """Adds a contiguous range of the logical tensor. It is cut at multiples of `chunk` whatever its memory format, so
    that the sums are the same to the last bit."""
    first, end = start, start + values.numel()
    while first < end:
        last = min(end, *((first // size + 1) * size for size in (chunk, PERIOD)))
        sums.add_range(read_range(values, first - start, last - start), first)
        first = last


def _add_with_zeros(sums: Sums, values: Tensor, block: LogicalIndex, chunk: int) -> None:
    """Adds the ranges of the logical tensor in which groups of rows lie, with zeros, which change no sum, in the place
    of elements that the block does not hold."""
    stride, row = block.strides[0], block.row()
    group = chunk // stride
    for at in range(0, block.extents[0], group):
        rows = min(group, block.extents[0] - at)
        part = read_range(values, at * row.elements, (at + rows) * row.elements)
        span = 1 + (rows - 1) * stride + sum((extent - 1) * step for extent, step in zip(row.extents, row.strides))
        spread = torch.zeros(span, dtype=values.dtype, device=values.device)
        extents = (rows, *row.extents)
        spread.as_strided(extents, block.strides).copy_(part.view(extents))
        _add_range(sums, spread, block.start + at * stride, chunk)
