"""The part of a logical tensor that a rank's DTensor holds."""

from __future__ import annotations

from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trainyard.numerics.tensor_record import Shard


def shard_of(tensor: DTensor) -> Shard | None:
    """The part that this rank holds; None if it holds the whole."""
    is_partial = any(placement.is_partial() for placement in tensor.placements)
    if not is_partial and all(placement.is_replicate() for placement in tensor.placements):
        return None
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Shard(offset=tuple(offset), shape=tuple(shape), partial=is_partial)
