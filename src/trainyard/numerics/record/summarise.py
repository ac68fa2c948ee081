"""The summary of a tensor: the fields of a `TensorRecord` that depend on its values."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from trainyard.errors import BadInput
from trainyard.numerics.record.add_block import add_block
from trainyard.numerics.record.host_sums import host_totals
from trainyard.numerics.record.logical_index import LogicalIndex, index_block
from trainyard.numerics.record.logical_order import read_positions
from trainyard.numerics.record.positional_hash import hash_text, lanes_per_element
from trainyard.numerics.record.sums import Sums, Totals
from trainyard.numerics.tensor_record import NonFinite, Shard, sample_positions

CPU_CHUNK = 1 << 16
"""Elements of up to 32 bits summarised at a time on the CPU, where the chunk stays in the cache: 3 MB more memory, in
addition to at most 25 MB of random numbers per process."""
DEVICE_CHUNK = 1 << 21
"""Elements summarised at a time on other devices: 100 MB more memory at most."""


class Summary(NamedTuple):
    """The fields of a `TensorRecord` of the same names. `mean` is the sum of the shard's elements over the number of
    elements of the logical tensor. `hash` and `sketch` are empty if the values
    cannot be read: meta and fake tensors, sparse, nested and quantized ones."""

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
    whole. Of a DTensor, pass the local part (`shard_of`). Integers and bools are summarised as float64 (rounded beyond
    2^53; the hash is exact), complex numbers as pairs of an added last dimension. On an accelerator it waits for the
    device once. Raises `BadInput` if the sizes contradict each other.
    """
    shape = tuple(tensor.shape) if shape is None else shape
    block = index_block(shape, shard)
    if block.elements != tensor.numel():
        raise BadInput(
            f"The shard has {block.elements} elements, but a tensor of shape {tuple(tensor.shape)} was passed.",
            "Pass the part that `shard` describes.",
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    if not _is_readable(tensor):
        return Summary(shape, dtype, shard)
    totals = _totals(tensor.detach(), block, prod(shape))
    return Summary(
        shape=shape,
        dtype=dtype,
        shard=shard,
        hash=hash_text(totals.digest),
        norm=totals.norm,
        maximum=totals.maximum,
        mean=totals.total / (prod(shape) or 1),
        nonfinite=totals.nonfinite,
        sketch=totals.sketch,
        sample=totals.sample,
    )


def _is_readable(tensor: Tensor) -> bool:
    """Whether the tensor has values in strided memory."""
    return (
        tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not isinstance(tensor, FakeTensor)
    )


def _totals(values: Tensor, block: LogicalIndex, elements: int) -> Totals:
    """Sums over `values`, which are `block` of a logical tensor of so many elements."""
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
        block, elements = block.of_pairs(), 2 * elements
    values = values.resolve_neg()
    if block.elements == elements and (totals := host_totals(values)) is not None:
        return totals
    sample = read_positions(values, _positions(block, elements, values.device))
    sums = Sums(values.device, values.is_floating_point())
    add_block(sums, values, block, _chunk(values))
    return sums.read(sample)


@lru_cache(maxsize=4096)
def _positions(block: LogicalIndex, elements: int, device: torch.device) -> Tensor:
    """Positions of the sampled elements in the block's order. They stay on the device: a copy from memory that is not
    page-locked may wait for it."""
    return torch.tensor(block.local_positions(sample_positions(elements)), dtype=torch.int64).to(device)


def _chunk(values: Tensor) -> int:
    """Elements summarised at a time."""
    return (CPU_CHUNK if values.device.type == "cpu" else DEVICE_CHUNK) // lanes_per_element(values.dtype)
