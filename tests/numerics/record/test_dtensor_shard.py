"""The parts of DTensors that ranks hold, without communication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from math import prod

import numpy as np
import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # noqa: E402
from torch.distributed.tensor.placement_types import Placement, _StridedShard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from tests.numerics.record.tensors import cut  # noqa: E402
from trainyard.errors import BadInput  # noqa: E402
from trainyard.numerics.record.dtensor_shard import LocalPart, shard_of  # noqa: E402
from trainyard.numerics.record.positional_hash import combined_hash  # noqa: E402
from trainyard.numerics.record.summarise import summarise  # noqa: E402


@contextmanager
def rank_of(mesh: Sequence[int], rank: int) -> Iterator[dist.DeviceMesh]:
    """A mesh as `rank` sees it, in a process group without other processes."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=prod(mesh))
    try:
        yield init_device_mesh("cpu", tuple(mesh))
    finally:
        dist.destroy_process_group()


def parts(tensor: torch.Tensor, mesh: Sequence[int], placements: Sequence[Placement]) -> list[LocalPart]:
    """The part of each rank."""
    parts: list[LocalPart] = []
    for rank in range(prod(mesh)):
        with rank_of(mesh, rank) as device_mesh:
            parts.append(shard_of(distribute_tensor(tensor, device_mesh, placements, src_data_rank=None)))
    return parts


PLACEMENTS = [
    *product([Shard(0), Shard(1), Replicate()], repeat=2),
    (_StridedShard(0, split_factor=2), Shard(0)),
    (_StridedShard(1, split_factor=2), Shard(1)),
]


@pytest.mark.parametrize("shape", [(12, 8), (16, 4, 3)], ids=str)
@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
def test_parts_of_ranks_are_those_of_the_logical_tensor(
    shape: tuple[int, ...], placements: tuple[Placement, ...]
) -> None:
    tensor = torch.randn(shape)
    distinct: dict[object, str] = {}
    for part in parts(tensor, (2, 2), placements):
        assert part.shape == shape
        assert torch.equal(part.tensor, cut(tensor, part.shard) if part.shard else tensor)
        distinct[part.shard] = summarise(part.tensor, shard=part.shard, shape=part.shape).hash
    assert combined_hash(distinct.values()) == summarise(tensor).hash
    assert len(distinct) == prod(2 for placement in placements if not placement.is_replicate())


@pytest.mark.parametrize("placements", [(Shard(0), Shard(1)), (Shard(0), Shard(0)), (Replicate(), Shard(1))], ids=str)
@pytest.mark.parametrize("shape", [(7, 5), (1, 9), (4, 4)], ids=str)
def test_uneven_parts_are_those_of_torch(shape: tuple[int, ...], placements: tuple[Placement, ...]) -> None:
    for rank in range(6):
        with rank_of((2, 3), rank) as mesh:
            tensor = distribute_tensor(torch.randn(shape), mesh, placements, src_data_rank=None)
            part, (size, offset) = shard_of(tensor), compute_local_shape_and_global_offset(shape, mesh, placements)
            assert part.shard is not None
            assert part.shard.shape == tuple(size) == tuple(part.tensor.shape)
            if prod(size):
                assert part.shard.offset == tuple(offset)


def test_partial_sums_are_marked() -> None:
    with rank_of((2, 2), 0) as mesh:
        tensor = DTensor.from_local(torch.ones(3, 4), mesh, [Partial(), Shard(1)], run_check=False)
        part = shard_of(tensor)
    assert part.shard is not None
    assert (part.shard.partial, part.shard.offset, part.shard.shape) == (True, (0, 0), (3, 4))
    assert part.shape == (3, 8)


@pytest.mark.parametrize("operation", ["max", "avg"])
def test_partial_results_that_are_not_sums_are_refused(operation: str) -> None:
    with rank_of((2,), 0) as mesh, pytest.raises(BadInput):
        shard_of(DTensor.from_local(torch.ones(3), mesh, [Partial(operation)], run_check=False))


def test_parts_that_are_not_contiguous_are_refused() -> None:
    with rank_of((2,), 0) as mesh:
        tensor = DTensor.from_local(
            torch.ones(4), mesh, [_StridedShard(0, split_factor=2)], run_check=False, shape=torch.Size([8]), stride=(1,)
        )
        with pytest.raises(BadInput):
            shard_of(tensor)


def test_sketches_of_partial_sums_over_ranks_add_up() -> None:
    tensors = torch.randn(2, 6, 10, dtype=torch.float64)
    sketches: list[np.ndarray] = []
    for rank in range(2):
        with rank_of((2,), rank) as mesh:
            part = shard_of(DTensor.from_local(tensors[rank], mesh, [Partial()], run_check=False))
            summary = summarise(part.tensor, shard=part.shard, shape=part.shape)
            sketches.append(np.frombuffer(summary.sketch))
    assert sum(sketches) == pytest.approx(np.frombuffer(summarise(tensors.sum(0)).sketch), abs=1e-12)
