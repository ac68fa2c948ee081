"""The summary of a tensor: the fields of a `TensorRecord` that depend on its values."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod, sqrt
from sys import float_info
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from trainyard.errors import BadInput
from trainyard.numerics.record.logical_index import LogicalIndex, index_block
from trainyard.numerics.record.sketch import multipliers_at, signs_at
from trainyard.numerics.tensor_record import BUCKETS, NonFinite, Shard, sample_positions

CHUNK = 1 << 16
"""Elements summarised at a time."""


class Summary(NamedTuple):
    """The fields of a `TensorRecord` of the same names. `mean` is of the elements of the shard. `hash` and `sketch` are
    empty if the values cannot be read: meta and fake tensors, sparse, nested and quantized ones."""

    shape: tuple[int, ...]
    dtype: str
    shard: Shard | None = None
    hash: str = ""
    norm: float = 0.0
    maximum: float = 0.0
    mean: float = 0.0
    nonfinite: NonFinite | None = None
    sketch: bytes = b""
    sample: bytes = b""


def summarise(tensor: Tensor, *, shard: Shard | None = None, shape: tuple[int, ...] | None = None) -> Summary:
    """Summarises the values of a tensor, or of the part of it that this rank holds.

    `shard`: the part of the logical tensor of this `shape` that `tensor` is, in row-major order; None if it is the
    whole. Integers and bools are summarised as float64, complex numbers as pairs. Raises `BadInput` if the sizes
    contradict each other.
    """
    shape = tuple(tensor.shape) if shape is None else shape
    dtype = str(tensor.dtype).removeprefix("torch.")
    block = index_block(shape, shard)
    if block.elements != tensor.numel():
        raise BadInput(
            f"A tensor of shape {tuple(tensor.shape)} is summarised as {block.elements} elements of a tensor of shape "
            f"{shape}.",
            "Pass the part that `shard` describes.",
        )
    if not _is_readable(tensor):
        return Summary(shape, dtype, shard)
    values = tensor.detach().resolve_conj().resolve_neg()
    if values.is_complex():
        values = torch.view_as_real(values)
        block = LogicalIndex(2 * block.start, (*block.extents, 2), (*(2 * stride for stride in block.strides), 1))
        elements = 2 * prod(shape)
    else:
        elements = prod(shape)
    return _summarise_values(values, block, elements)._replace(shape=shape, dtype=dtype, shard=shard)


def _is_readable(tensor: Tensor) -> bool:
    """Whether the tensor has values in strided memory."""
    return (
        tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not isinstance(tensor, FakeTensor)
    )


def _summarise_values(values: Tensor, block: LogicalIndex, elements: int) -> Summary:
    """Summary of real values. `elements`: of the logical tensor."""
    device = values.device
    sketch = torch.zeros(BUCKETS, dtype=torch.float64, device=device)
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    counts = torch.zeros(3, dtype=torch.int64, device=device)
    maximum = torch.zeros((), dtype=torch.float64, device=device)
    digest = torch.zeros((), dtype=torch.int64, device=device)
    at = 0
    for chunk in _chunks(values):
        indices = block.flat(at, at + len(chunk), device)
        at += len(chunk)
        digest += _hash(chunk, indices)
        wide = chunk.to(torch.float64)
        counts += torch.stack([wide.isnan().sum(), wide.isposinf().sum(), wide.isneginf().sum()])
        wide = torch.where(wide.isfinite(), wide, 0.0)
        sketch.index_add_(0, indices % BUCKETS, wide * signs_at(indices))
        sums += torch.stack([wide.sum(), wide.square().sum()])
        maximum = torch.maximum(maximum, wide.abs().amax())
    wanted = sample_positions(elements)
    sample = _sample(values, block, wanted)
    nan, positive, negative = counts.tolist()
    total, squares = sums.tolist()
    return Summary(
        (),
        "",
        hash=f"{int(digest) & (1 << 64) - 1:016x}",
        norm=min(sqrt(squares), float_info.max),
        maximum=float(maximum),
        mean=total / max(1, values.numel()),
        nonfinite=NonFinite(nan=nan, positive=positive, negative=negative) if nan + positive + negative else None,
        sketch=sketch.cpu().numpy().astype("<f8").tobytes(),
        sample=sample.cpu().numpy().astype("<f8").tobytes(),
    )


def _chunks(values: Tensor) -> Iterator[Tensor]:
    """Pieces of the flattened tensor in logical order, of at most `CHUNK` elements, copied only if they have to be."""
    if values.is_contiguous() or values.numel() <= CHUNK:
        yield from (piece for piece in values.reshape(-1).split(CHUNK) if len(piece))
        return
    rows = CHUNK // (values.numel() // len(values))
    if rows:
        yield from (piece.reshape(-1) for piece in values.split(rows))
    else:
        for row in values.unbind(0):
            yield from _chunks(row)


def _hash(chunk: Tensor, indices: Tensor) -> Tensor:
    """Sum of lanes times multipliers, modulo 2^64."""
    size = chunk.element_size()
    lanes_per_element = max(1, size // 4)
    lanes = chunk.view(_LANES[min(4, size)]).to(torch.int64)
    if lanes_per_element > 1:
        indices = (indices[:, None] * lanes_per_element + torch.arange(lanes_per_element, device=indices.device)).view(
            -1
        )
    return (lanes * multipliers_at(indices)).sum()


_LANES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _sample(values: Tensor, block: LogicalIndex, wanted: list[int]) -> Tensor:
    """Those elements of the sample that the block holds, in order."""
    local = [at for at in map(block.local, wanted) if at is not None]
    positions = torch.tensor(local, dtype=torch.int64, device=values.device)
    index: list[Tensor] = []
    for size in reversed(values.shape):
        index.insert(0, positions % size)
        positions = positions // size
    picked = values[tuple(index)] if index else values.reshape(1)[: len(local)]
    wide = picked.to(torch.float64)
    return torch.where(wide.isfinite(), wide, 0.0)
