"""Sketches: sums of the elements with pseudo-random signs, in buckets.

The sign of element i (logical, row-major) is `pool[i % P]`, and its bucket i % 64. P is a prime, so that sign and
bucket repeat together only after 64 P, 67 million elements. From there on the sign also depends on the bucket and the
number of the repetition: otherwise an error that repeats too, such as a constant one, would be estimated too large.
"""

from __future__ import annotations

from functools import cache
from hashlib import shake_256

import numpy as np
import torch
from torch import Tensor

from trainyard.numerics.record.scramble import scramble
from trainyard.numerics.record.scratch import scratch
from trainyard.numerics.tensor_record import BUCKETS

SIGNS = 1_048_573
"""Length of the pool: the largest prime below 2^20."""
PERIOD = BUCKETS * SIGNS
"""Elements after which pairs of sign in the pool and bucket repeat."""


def sketch_of_range(values: Tensor, first: int) -> Tensor:
    """Sketch of float64 `values` at logical indices from `first`, a multiple of 64. Their number is a multiple of 64,
    and they lie within one repetition."""
    at = first % SIGNS
    signs = _pool(values.device, -(-(SIGNS + len(values)) // SIGNS))[at : at + len(values)]
    product = scratch("product", len(values), torch.float64, values.device)
    sums = torch.mul(values, signs, out=product).view(-1, BUCKETS).sum(0)
    if first < PERIOD:
        return sums
    buckets = torch.arange(BUCKETS, device=values.device)
    return sums * _turns(torch.full_like(buckets, first // PERIOD), buckets)


def sketch_at(values: Tensor, indices: Tensor) -> Tensor:
    """Sketch of float64 `values` at logical `indices`."""
    buckets = indices % BUCKETS
    signs = _pool(values.device, 1)[indices % SIGNS] * _turns(indices // PERIOD, buckets)
    return torch.zeros(BUCKETS, dtype=torch.float64, device=values.device).index_add_(0, buckets, values * signs)


@cache
def _pool(device: torch.device, copies: int) -> Tensor:
    """The signs as float64, 8 MB, repeated `copies` times."""
    bits = np.frombuffer(shake_256(b"signs of sketches").digest(-(-SIGNS // 8)), np.uint8)
    return torch.from_numpy(1.0 - 2.0 * np.unpackbits(bits)[:SIGNS]).repeat(copies).to(device)


def _turns(repetitions: Tensor, buckets: Tensor) -> Tensor:
    """The factors, 1 or -1, of buckets in repetitions of the pool; 1 in the first."""
    negative = (scramble(repetitions * BUCKETS + buckets) < 0) & (repetitions > 0)
    return 1.0 - 2.0 * negative.to(torch.float64)
