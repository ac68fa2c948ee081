"""Random tensors of every dtype and memory format, and their divisions into shards."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import torch
from hypothesis import strategies as st
from torch import Tensor

from trainyard.numerics.tensor_record import Shard

FLOATS = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
)
DTYPES = (
    *(*FLOATS, torch.complex64, torch.complex128, torch.bool),
    *(torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64),
)


@st.composite
def tensors(draw: st.DrawFn, min_dims: int = 0) -> Tensor:
    """A tensor of any dtype whose dimensions lie in memory in any order, possibly with gaps or repeated."""
    shape = draw(st.lists(st.integers(0, 11), min_size=min_dims, max_size=4))
    order = draw(st.permutations(range(len(shape))))
    step = draw(st.sampled_from([1, 1, 2]))
    seed = draw(st.integers(0, 999))
    stored = [shape[dimension] for dimension in order]
    values = torch.randn([*stored, step], generator=torch.Generator().manual_seed(seed))[..., 0] * 9
    tensor = values.to(draw(st.sampled_from(DTYPES)))
    tensor = tensor.permute([order.index(dimension) for dimension in range(len(shape))])
    return tensor.expand(3, *shape) if draw(st.sampled_from([False, False, True])) else tensor


@st.composite
def divisions(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Shard]:
    """Disjoint shards that cover a tensor; some may be empty."""
    ranges = [list(pairwise([0, *sorted(draw(st.lists(st.integers(0, size), max_size=2))), size])) for size in shape]
    return [
        Shard(offset=tuple(first for first, _ in block), shape=tuple(last - first for first, last in block))
        for block in product(*ranges)
    ]


def cut(tensor: Tensor, shard: Shard) -> Tensor:
    """The part of `tensor` that is `shard`."""
    return tensor[tuple(slice(at, at + size) for at, size in zip(shard.offset, shard.shape))]


def flat_divisions(shape: tuple[int, ...], parts: int) -> list[Shard]:
    """Equal ranges of the flattened tensor; the last ones may be shorter."""
    size = -(-prod(shape) // parts)
    bounds = [min(at * size, prod(shape)) for at in range(parts + 1)]
    return [Shard(offset=(first,), shape=(last - first,)) for first, last in pairwise(bounds)]
