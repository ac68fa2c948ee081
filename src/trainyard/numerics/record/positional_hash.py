"""Hashes of the exact bits of a tensor, in logical order.

The hash is multilinear (Carter and Wegman 1979): the sum, modulo 2^64, of bits(j) * m(j) over lanes j. A lane is an
element of up to 32 bits, or half of one of 64 bits; m(j) is odd and pseudo-random. It is a sum, so the hashes of the
shards of a tensor add up to its hash (`combined_hash`). One changed lane always changes it. Other changes go unnoticed
with a probability of about 2^-64 if the lowest bit of a lane changes, and of 2^-32 if only the highest bits of lanes of
32 bits do. Shape and dtype are not hashed. 0.0 and -0.0 have different hashes, and so do NaNs with different payloads.
It is not a protection against deliberate collisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from hashlib import shake_256

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from trainyard.numerics.record.flat_values import flat_values
from trainyard.numerics.record.scramble import scramble
from trainyard.numerics.record.scratch import scratch

MULTIPLIERS = 1 << 16
"""Length of the pool of multipliers. m(j) is `pool[j % MULTIPLIERS]` times an odd number of the block
j // MULTIPLIERS."""

_LANES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def combined_hash(hashes: Iterable[str]) -> str:
    """The hash of a tensor from those of disjoint shards that cover it."""
    return hash_text(sum(int(text, 16) for text in hashes))


def hash_text(number: int) -> str:
    """A hash as 16 hexadecimal digits."""
    return f"{number % (1 << 64):016x}"


def lanes_per_element(dtype: torch.dtype) -> int:
    """Lanes of an element."""
    return max(1, dtype.itemsize // 4)


def hash_range(values: Tensor, first: int) -> Tensor:
    """Hash, int64 without dimensions, of contiguous `values` at logical indices from `first`."""
    lanes = _lanes(values)
    block, at = divmod(first * lanes_per_element(values.dtype), MULTIPLIERS)
    pool = multiplier_pool(values.device)
    if at + len(lanes) <= MULTIPLIERS:
        return lanes.mul_(pool[at : at + len(lanes)]).sum() * _factor(block)
    blocks = pad(lanes, (at, -(at + len(lanes)) % MULTIPLIERS)).view(-1, MULTIPLIERS)
    numbers = torch.arange(block, block + len(blocks), device=values.device)
    return ((blocks * pool).sum(1) * block_factors(numbers)).sum()


def hash_at(values: Tensor, indices: Tensor) -> Tensor:
    """Hash, int64 without dimensions, of contiguous `values` at logical `indices`."""
    count = lanes_per_element(values.dtype)
    numbers = (indices[:, None] * count + torch.arange(count, device=indices.device)).view(-1)
    multipliers = multiplier_pool(values.device)[numbers % MULTIPLIERS] * block_factors(numbers // MULTIPLIERS)
    return (_lanes(values) * multipliers).sum()


def _lanes(values: Tensor) -> Tensor:
    """The bits of each lane as int64, in scratch memory."""
    bits = flat_values(values).view(_LANES[min(4, values.element_size())])
    return scratch("lanes", len(bits), torch.int64, bits.device).copy_(bits)


@cache
def multiplier_pool(device: torch.device) -> Tensor:
    """Odd multipliers, int64, 0.5 MB."""
    numbers = np.frombuffer(shake_256(b"multipliers of hashes").digest(8 * MULTIPLIERS), "<i8")
    return torch.from_numpy(numbers | 1).to(device)


@lru_cache(maxsize=4096)
def _factor(block: int) -> int:
    """The odd number of a block of lanes."""
    return int(block_factors(torch.tensor(block)))


def block_factors(blocks: Tensor) -> Tensor:
    """Odd numbers, int64, of blocks of lanes."""
    return scramble(blocks) | 1
