"""Elements of a tensor in logical (row-major) order, whatever its memory format."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor


def read_range(tensor: Tensor, first: int, last: int) -> Tensor:
    """The elements `first` to `last` (exclusive) of the flattened tensor: a view if it is contiguous, else a copy."""
    pieces = _pieces(tensor, first, last)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _pieces(tensor: Tensor, first: int, last: int) -> list[Tensor]:
    """The range as flat pieces: the end of a row, whole rows and the beginning of a row, if rows are not contiguous."""
    if tensor.is_contiguous():
        return [tensor.view(-1)[first:last]]
    row = prod(tensor.shape[1:])
    begin, end = -(-first // row), last // row
    if begin > end:
        return _pieces(tensor[end], first - end * row, last - end * row)
    pieces: list[Tensor] = []
    if first % row:
        pieces += _pieces(tensor[begin - 1], first % row, row)
    if begin < end:
        pieces.append(tensor[begin:end].reshape(-1).contiguous())  # an expanded tensor of one dimension is a view
    if last % row:
        pieces += _pieces(tensor[end], 0, last % row)
    return pieces


def read_positions(tensor: Tensor, positions: Tensor) -> Tensor:
    """The elements at these positions of the flattened tensor."""
    if tensor.is_contiguous():
        return tensor.view(-1)[positions]
    index: list[Tensor] = []
    for size in reversed(tensor.shape):
        index.append(positions % size)
        positions = positions // size
    return tensor[tuple(reversed(index))]
