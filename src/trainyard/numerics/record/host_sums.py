"""The sums over a whole tensor in host memory, by compiled code in one pass."""

from __future__ import annotations

from ctypes import byref
from functools import cache
from math import sqrt
from sys import float_info

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainyard.numerics.record import native
from trainyard.numerics.record.positional_hash import (
    MULTIPLIERS,
    block_factors,
    lanes_per_element,
    multiplier_pool,
)
from trainyard.numerics.record.sketch import PERIOD, SIGNS, sign_pool
from trainyard.numerics.record.sums import Totals
from trainyard.numerics.tensor_record import BUCKETS, NonFinite

_FORMATS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}
"""Numbers of the formats in `summarise.c`."""
_MOST_COPIED = 1 << 22
"""Elements of the largest tensor that is copied to be contiguous."""
_LARGEST = float_info.max


def host_totals(values: Tensor) -> Totals | None:
    """The sums over `values`, which are a whole logical tensor. None if the compiled code was not built, or does not
    read such tensors."""
    library = native.library()
    if library is None or not _is_read(values):
        return None
    sums, values = native.NativeSums(), values.contiguous()
    library.summarise(_FORMATS[values.dtype], values.data_ptr(), values.numel(), byref(_pools()[0]), byref(sums))
    nonfinite = None
    if sums.nan or sums.positive or sums.negative:
        nonfinite = NonFinite(nan=sums.nan, positive=sums.positive, negative=sums.negative)
    return Totals(
        digest=sums.digest,
        total=min(max(sums.total, -_LARGEST), _LARGEST),
        norm=min(sqrt(sums.squares), _LARGEST),
        maximum=sums.maximum,
        nonfinite=nonfinite,
        sketch=bytes(sums.sketch),
        sample=bytes(sums.sample)[: 8 * sums.samples],
    )


def _is_read(values: Tensor) -> bool:
    """Whether the compiled code reads such a tensor. Subclasses may have no memory of their own, as the result of an
    asynchronous collective."""
    return (
        type(values) is Tensor
        and values.dtype in _FORMATS
        and values.device.type == "cpu"
        and values.numel() <= (PERIOD if values.is_contiguous() else _MOST_COPIED)
    )


@cache
def _pools() -> tuple[native.Pools, list[NDArray[np.generic]]]:
    """The pseudo-random numbers of signs and hashes, and the arrays that hold them."""
    host = torch.device("cpu")
    is_negative = sign_pool(host, 1).numpy() < 0
    bits = np.packbits(np.concatenate([is_negative, is_negative[:BUCKETS]]), bitorder="little")
    signs = np.pad(bits, (0, -len(bits) % 8 + 8)).view("<u8")
    multipliers = multiplier_pool(host).numpy()
    blocks = torch.arange(lanes_per_element(torch.float64) * PERIOD // MULTIPLIERS + 1)
    factors = block_factors(blocks).numpy()
    pools = native.Pools(
        signs=signs.ctypes.data,
        sign_count=SIGNS,
        multipliers=multipliers.ctypes.data,
        multiplier_count=MULTIPLIERS,
        factors=factors.ctypes.data,
    )
    return pools, [signs, multipliers, factors]
