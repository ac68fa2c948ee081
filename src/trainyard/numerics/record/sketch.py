"""The random numbers of sketches and hashes, functions of the logical index alone.

They come from SHAKE-256, so that they are the same in every version of every library.

The sign of element i is `pool[i % P]`, where P is a prime: with 64 buckets, sign and bucket repeat after 64 P, 67 million
elements. From there on the sign also depends on the number of the repetition and the bucket, as otherwise the estimated
distance of larger tensors was too large if all elements are wrong by the same amount.

The hash is multilinear (Carter and Wegman 1979): the sum of bits(j) * m(j) modulo 2^64 over lanes j of at most 32 bits,
where m(j) is odd and pseudo-random. It is a sum, so the hashes of shards add up.
"""

from __future__ import annotations

from functools import cache
from hashlib import shake_256

import numpy as np
import torch
from torch import Tensor

from trainyard.numerics.tensor_record import BUCKETS

SIGNS = 1_048_573
"""Length of the pool of signs: the largest prime below 2^20."""
MULTIPLIERS = 1 << 16
"""Length of the pool of the hash's multipliers."""
_PERIOD = BUCKETS * SIGNS


@cache
def sign_pool(device: torch.device) -> Tensor:
    """Signs as float64."""
    bits = np.frombuffer(shake_256(b"trainyard sketch signs").digest(-(-SIGNS // 8)), np.uint8)
    return torch.from_numpy(1.0 - 2.0 * np.unpackbits(bits)[:SIGNS]).to(device)


@cache
def multiplier_pool(device: torch.device) -> Tensor:
    """Odd multipliers as int64."""
    numbers = np.frombuffer(shake_256(b"trainyard hash multipliers").digest(8 * MULTIPLIERS), "<i8")
    return torch.from_numpy(numbers | 1).to(device)


def signs_at(indices: Tensor) -> Tensor:
    """Signs, float64, of elements with these logical indices."""
    signs = sign_pool(indices.device)[indices % SIGNS]
    repetition = indices // _PERIOD
    turns = scramble(repetition * BUCKETS + indices % BUCKETS) >= 0
    return torch.where((repetition == 0) | turns, signs, -signs)


def multipliers_at(lanes: Tensor) -> Tensor:
    """Multipliers, int64, of the lanes with these logical indices."""
    return multiplier_pool(lanes.device)[lanes % MULTIPLIERS] * (scramble(lanes // MULTIPLIERS) | 1)


def scramble(numbers: Tensor) -> Tensor:
    """Pseudo-random int64 of each int64 (the output function of splitmix64; Steele, Lea, Flood 2014)."""
    numbers = (numbers + 1) * -0x61C8864680B583EB
    numbers = (numbers ^ (numbers >> 30 & (1 << 34) - 1)) * -0x40A7B892E31B1A47
    numbers = (numbers ^ (numbers >> 27 & (1 << 37) - 1)) * -0x6B2FB644ECCEEE15
    return numbers ^ (numbers >> 31 & (1 << 33) - 1)
