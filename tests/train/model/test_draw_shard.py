"""A shard of any placement equals the slice of the whole draw, to the bit."""

from contextlib import contextmanager
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.torch


@contextmanager
def fake_ranks(rank, world):
    """A process group of which this process is `rank`; nothing may be sent. torch caches DTensor's placements with
    their mesh, in which this process would keep its rank of an earlier group."""
    import torch.distributed as dist
    from torch.distributed.tensor.debug import _clear_fast_path_sharding_prop_cache, _clear_python_sharding_prop_cache
    from torch.testing._internal.distributed.fake_pg import FakeStore

    _clear_python_sharding_prop_cache()
    _clear_fast_path_sharding_prop_cache()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def draw_whole(shape, name="w", seed=3, kind=None):
    """All values of a logical tensor."""
    import torch

    from trainyard.train.model.distributions import Normal
    from trainyard.train.model.draw_shard import draw
    from trainyard.train.model.logical_shard import find_shard

    values = torch.empty(shape)
    draw(values, find_shard(values), kind or Normal(0.02), seed, name, torch.device("cpu"))
    return values


@st.composite
def sharded(draw):
    """(tensor shape, mesh shape, rank, placement of each mesh dimension as (kind, tensor dimension)). Sizes are often
    smaller than the mesh or do not divide. `strided` is FSDP over a dimension that the last axis splits too."""
    shape = draw(st.lists(st.integers(1, 13), min_size=1, max_size=4))
    mesh = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dimensions = st.integers(0, len(shape) - 1)
    placements = draw(
        st.lists(
            st.one_of(st.just(("replicate", 0)), st.tuples(st.just("shard"), dimensions)),
            min_size=len(mesh),
            max_size=len(mesh),
        )
    )
    if len(mesh) > 1 and placements[-1][0] == "shard" and draw(st.booleans()):
        placements[-2] = ("strided", placements[-1][1])
    return shape, mesh, draw(st.integers(0, prod(mesh) - 1)), placements


@given(sharded(), st.sampled_from(["normal", "truncated", "uniform"]))
@settings(max_examples=150, deadline=None)
def test_any_shard_equals_the_slice_of_the_whole(case, kind):
    torch = pytest.importorskip("torch")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard

    from trainyard.train.model.distributions import Normal, Uniform
    from trainyard.train.model.draw_shard import draw
    from trainyard.train.model.logical_shard import find_shard

    shape, mesh_shape, rank, kinds = case
    distribution = {"normal": Normal(1.0), "truncated": Normal(1.0, 1.0), "uniform": Uniform(2.0)}[kind]
    with fake_ranks(rank, prod(mesh_shape)):
        mesh = init_device_mesh("cpu", tuple(mesh_shape))
        placement_types = {
            "replicate": lambda _: Replicate(),
            "shard": Shard,
            "strided": lambda dimension: _StridedShard(dimension, split_factor=mesh_shape[-1]),
        }
        placements = [placement_types[name](dimension) for name, dimension in kinds]
        full = draw_whole(shape, kind=distribution)
        expected = distribute_tensor(full, mesh, placements, src_data_rank=None)
        shard = find_shard(expected)
        local = torch.full_like(expected.to_local(), torch.nan)
        draw(local, shard, distribution, 3, "w", torch.device("cpu"))
    assert torch.equal(local, expected.to_local())
    assert shard.run_count * shard.run_length == local.numel()


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_arbitrary_index_sets_equal_fancy_indexing(data):
    """Padded vocabularies, groups of experts and heads of a fused matrix are such sets."""
    torch = pytest.importorskip("torch")
    from trainyard.train.model.distributions import Normal
    from trainyard.train.model.draw_shard import draw
    from trainyard.train.model.logical_shard import LogicalShard

    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    indices = [
        torch.tensor(data.draw(st.lists(st.integers(0, size - 1), min_size=1, unique=True)), dtype=torch.int64)
        for size in shape
    ]
    local = torch.empty([len(index) for index in indices])
    draw(local, LogicalShard(shape, indices), Normal(0.02), 3, "w", torch.device("cpu"))
    assert torch.equal(local, draw_whole(shape)[torch.meshgrid(*indices, indexing="ij")])


def test_pieces_and_runs_do_not_change_values(monkeypatch):
    """With few elements at a time, long runs are drawn in pieces and short ones in groups."""
    torch = pytest.importorskip("torch")
    from trainyard.train.model import draw_shard
    from trainyard.train.model.distributions import Normal

    shape, values = (37, 129), []
    for elements in (16, 64, 1 << 22):
        monkeypatch.setattr(draw_shard, "_MAX_ELEMENTS", elements)
        columns = draw_shard.LogicalShard(shape, [torch.arange(37), torch.arange(5, 100)])
        part = torch.empty(37, 95)
        draw_shard.draw(part, columns, Normal(0.02), 3, "w", torch.device("cpu"))
        values.append((draw_whole(shape), part))
    assert all(torch.equal(full, values[0][0]) and torch.equal(part, values[0][0][:, 5:100]) for full, part in values)


def test_elements_beyond_32_bits_of_blocks():
    """An element's block is its index // 4, also in a tensor of more than 2**34 elements."""
    torch = pytest.importorskip("torch")
    from trainyard.train.model.distributions import Uniform
    from trainyard.train.model.draw_shard import _stream, draw
    from trainyard.train.model.logical_shard import LogicalShard
    from trainyard.train.model.philox import philox

    rows, width = 2**33, 8
    for row in (0, 2**31 - 1, 2**31, 2**33 - 1):
        local = torch.empty(1, width)
        index = [torch.tensor([row]), torch.arange(width)]
        draw(local, LogicalShard((rows, width), index), Uniform(1.0), 3, "w", torch.device("cpu"))
        block, stream = 2 * row, _stream("w")
        counters = [(number % 2**32, number >> 32, stream % 2**32, stream >> 32) for number in (block, block + 1)]
        words = [word for counter in counters for word in philox(counter, 3)]
        assert local[0].tolist() == [((word >> 8) - 2**23) / 2**23 for word in words]


def test_non_contiguous_parameters_get_the_same_values():
    torch = pytest.importorskip("torch")
    from trainyard.train.model.distributions import Normal
    from trainyard.train.model.draw_shard import draw
    from trainyard.train.model.logical_shard import find_shard

    local = torch.empty(6, 3, 5, 5).to(memory_format=torch.channels_last)
    draw(local, find_shard(local), Normal(0.02), 3, "w", torch.device("cpu"))
    assert torch.equal(local, draw_whole((6, 3, 5, 5)))


def test_lower_precision_is_the_rounded_value():
    torch = pytest.importorskip("torch")
    from trainyard.train.model.distributions import Normal
    from trainyard.train.model.draw_shard import draw
    from trainyard.train.model.logical_shard import find_shard

    local = torch.empty(65, 3, dtype=torch.bfloat16)
    draw(local, find_shard(local), Normal(0.02), 3, "w", torch.device("cpu"))
    assert torch.equal(local, draw_whole((65, 3)).bfloat16())
