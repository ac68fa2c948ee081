"""The values of a tensor as a vector whose bits can be viewed."""

from __future__ import annotations

from torch import Tensor


def flat_values(tensor: Tensor) -> Tensor:
    """The elements in row-major order, with the stride 1. A tensor of one element counts as contiguous with any stride,
    and its bits cannot be viewed with another size of elements."""
    flat = tensor.contiguous().view(-1)
    return flat if flat.stride() == (1,) else flat.as_strided(flat.shape, (1,))
