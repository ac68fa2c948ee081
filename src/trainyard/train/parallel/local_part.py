"""A rank's part of a sharded tensor."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, in the same memory; a tensor that is not sharded itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
