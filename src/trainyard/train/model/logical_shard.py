"""The logical elements that a rank's shard of a tensor consists of, whatever the layout.

The logical tensor is the unsharded one, and an element's index is its position in it, row-major. A shard selects some
indices of each dimension: a range, or several for FSDP over a dimension that is already split by tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement, _StridedShard


class LogicalShard:
    """The elements of a logical tensor at the Cartesian product of an index set per dimension, row-major.

    They form `run_count` runs of `run_length` consecutive logical elements each.
    """

    def __init__(self, shape: Sequence[int], indices: Sequence[Tensor]) -> None:
        """`shape`: of the logical tensor; `indices`: of each dimension, the selected logical indices (int64, on the
        host), in the order of the shard."""
        self.shape, self.indices = tuple(shape), tuple(indices)
        self.strides = [prod(self.shape[dimension + 1 :]) for dimension in range(len(self.shape))]
        self._split = self._innermost_partial_dimension()

    def _innermost_partial_dimension(self) -> int:
        """The last dimension that is not complete; -1 if all are. Elements at consecutive indices of it are
        consecutive."""
        partial = [
            dimension
            for dimension, (size, index) in enumerate(zip(self.shape, self.indices))
            if len(index) != size or not _is_range(index)
        ]
        return max(partial, default=-1)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the shard."""
        return tuple(len(index) for index in self.indices)

    @cached_property
    def run_length(self) -> int:
        """Number of elements of each run."""
        if self._split < 0:
            return prod(self.shape)
        index = self.indices[self._split]
        return (len(index) if _is_range(index) else 1) * self.strides[self._split]

    @cached_property
    def _outer(self) -> tuple[Tensor, ...]:
        """The index sets whose product has an entry for each run."""
        if self._split < 0:
            return ()
        index = self.indices[self._split]
        return (*self.indices[: self._split], index[:1] if _is_range(index) else index)

    @property
    def run_count(self) -> int:
        """Number of runs."""
        return prod(len(index) for index in self._outer)

    def run_starts(self, first: int, last: int) -> Tensor:
        """The logical index of the first element of each of the runs `first` to `last` - 1: (runs), int64, on the
        host."""
        runs, starts = torch.arange(first, last), torch.zeros(last - first, dtype=torch.int64)
        for index, stride in reversed(list(zip(self._outer, self.strides))):
            starts += index[runs % len(index)] * stride
            runs //= len(index)
        return starts


def find_shard(tensor: Tensor) -> LogicalShard:
    """The elements of this rank's part of a tensor: all of a plain tensor, those of the local tensor of a `DTensor`.

    Sends nothing. Partial sums count as replicas.
    """
    if not isinstance(tensor, DTensor):
        return LogicalShard(tensor.shape, [torch.arange(size) for size in tensor.shape])
    return LogicalShard(tensor.shape, [_local_indices(tensor, dimension) for dimension in range(tensor.ndim)])


def _local_indices(tensor: DTensor, dimension: int) -> Tensor:
    """The logical indices of a dimension that this rank has, by distributing all of them as torch distributes the
    tensor itself."""
    placements = [_along(placement, dimension) for placement in tensor.placements]
    indices = torch.arange(tensor.shape[dimension])
    return distribute_tensor(indices, tensor.device_mesh, placements, src_data_rank=None).to_local().cpu()


def _along(placement: Placement, dimension: int) -> Placement:
    """The placement of the indices of one dimension of a tensor with `placement`."""
    if getattr(placement, "dim", None) != dimension:
        return Replicate()
    if isinstance(placement, _StridedShard):
        return _StridedShard(0, split_factor=placement.split_factor)
    return Shard(0)


def _is_range(indices: Tensor) -> bool:
    """Whether the indices are consecutive and ascending."""
    return bool((indices.diff() == 1).all())
