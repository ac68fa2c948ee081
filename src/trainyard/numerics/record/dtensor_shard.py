"""The part of a DTensor that this rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor import Shard as DimensionShard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from trainyard.errors import BadInput
from trainyard.numerics.tensor_record import Shard


class LocalPart(NamedTuple):
    """The arguments of `summarise` for a distributed tensor. `shape`: of the logical tensor. `shard`: None if every
    rank holds the whole."""

    tensor: Tensor
    shard: Shard | None
    shape: tuple[int, ...]


def shard_of(tensor: DTensor) -> LocalPart:
    """The local part of `tensor`, without communication. Raises `BadInput` if it is not one block of the logical
    tensor, or if the logical tensor is not a sum of its parts (a maximum, for example)."""
    shape = tuple(tensor.shape)
    partial = [_is_partial_sum(placement) for placement in tensor.placements]
    if all(placement.is_replicate() for placement in tensor.placements):
        return LocalPart(tensor.to_local(), None, shape)
    blocks = [
        _held_range(dimension, size, tensor.placements, tensor.device_mesh.shape, _coordinate(tensor))
        for dimension, size in enumerate(shape)
    ]
    shard = Shard(offset=tuple(block.start for block in blocks), shape=tuple(map(len, blocks)), partial=any(partial))
    return LocalPart(tensor.to_local(), shard, shape)


def _coordinate(tensor: DTensor) -> Sequence[int]:
    """Position of this rank in the mesh of a tensor."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        raise BadInput(
            f"This rank is not in the mesh {tensor.device_mesh} of the tensor.", "Record it on the ranks of the mesh."
        )
    return coordinate


def _is_partial_sum(placement: Placement) -> bool:
    """Whether the logical tensor is the sum of parts. Raises `BadInput` for placements that cannot be expressed."""
    if isinstance(placement, Partial):
        if placement.reduce_op == "sum":
            return True
    elif isinstance(placement, (Replicate, DimensionShard, _StridedShard)):
        return False
    raise BadInput(
        f"The parts of a tensor with placement {placement} do not add up to the tensor.",
        "Redistribute the tensor before it is recorded.",
    )


def _held_range(
    dimension: int, size: int, placements: Sequence[Placement], mesh: Sequence[int], coordinate: Sequence[int]
) -> range:
    """The indices of a dimension that the rank at `coordinate` of `mesh` holds."""
    indices = torch.arange(size)
    for placement, ranks, at in zip(placements, mesh, coordinate):
        if isinstance(placement, _StridedShard) and placement.dim == dimension:
            indices = torch.cat([_chunk(part, ranks, at) for part in indices.chunk(int(placement.split_factor))])
        elif isinstance(placement, DimensionShard) and placement.dim == dimension:
            indices = _chunk(indices, ranks, at)
    start = int(indices[0]) if len(indices) else 0
    if not torch.equal(indices, torch.arange(start, start + len(indices))):
        raise BadInput(
            f"With the placements {tuple(placements)} on a mesh of {'x'.join(map(str, mesh))} ranks, dimension "
            f"{dimension} of {size} elements is not divided into contiguous parts.",
            "Choose a size that the number of ranks divides.",
        )
    return range(start, start + len(indices))


def _chunk(indices: Tensor, ranks: int, at: int) -> Tensor:
    """The part of rank `at`; empty if there are fewer parts than ranks."""
    chunks = indices.chunk(ranks)
    return chunks[at] if at < len(chunks) else indices[:0]
