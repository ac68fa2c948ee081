"""The sums over the elements of a tensor from which its summary is computed."""

from __future__ import annotations

from math import isfinite, sqrt
from sys import float_info
from typing import NamedTuple

import torch
from torch import Tensor

from trainyard.numerics.record.positional_hash import hash_at, hash_range
from trainyard.numerics.record.scratch import scratch
from trainyard.numerics.record.sketch import sketch_at, sketch_of_range
from trainyard.numerics.tensor_record import BUCKETS, NonFinite

_LARGEST = float_info.max


class Totals(NamedTuple):
    """Sums on the host. `digest`: the hash as an integer."""

    digest: int
    total: float
    norm: float
    maximum: float
    nonfinite: NonFinite | None
    sketch: bytes
    sample: bytes


class Sums:
    """Sums of the elements seen so far, on their device. Non-finite elements count as 0, and are counted.

    Floating-point sums are taken over fixed rows, so that the number of threads does not change them.
    """

    def __init__(self, device: torch.device, floating: bool) -> None:
        """`floating`: the elements may be non-finite."""
        self._floating = floating
        self._digest = torch.zeros(1, dtype=torch.int64, device=device)
        self._sketch, self._total, self._squares, self._maximum = torch.zeros(
            4, BUCKETS, dtype=torch.float64, device=device
        ).unbind()
        self._counts = torch.zeros(3, dtype=torch.float64, device=device)

    def add_range(self, values: Tensor, first: int) -> None:
        """Adds contiguous elements at logical indices from `first`."""
        self._digest += hash_range(values, first)
        lead = first % BUCKETS
        wide = self._add(values, lead)
        self._sketch += sketch_of_range(wide, first - lead)

    def add_at(self, values: Tensor, indices: Tensor) -> None:
        """Adds elements at logical `indices`."""
        self._digest += hash_at(values, indices)
        wide = self._add(values, 0)
        self._sketch += sketch_at(wide[: len(values)], indices)

    def _add(self, values: Tensor, lead: int) -> Tensor:
        """Adds to all sums but hash and sketch. Returns the values as float64 with 0 for non-finite ones, after `lead`
        zeros, and followed by zeros up to a multiple of 64."""
        wide = _widen(values, lead)
        total = wide.view(BUCKETS, -1).sum(1)
        if self._floating and not _is_known_finite(total):
            self._counts += torch.stack([wide.isnan().sum(), wide.isposinf().sum(), wide.isneginf().sum()])
            wide = torch.where(wide.isfinite(), wide, 0.0)
            total = wide.view(BUCKETS, -1).sum(1)
        self._total += total
        product = scratch("product", len(wide), torch.float64, wide.device)
        self._squares += torch.mul(wide, wide, out=product).view(BUCKETS, -1).sum(1)
        torch.maximum(self._maximum, torch.abs(wide, out=product).view(BUCKETS, -1).amax(1), out=self._maximum)
        return wide

    def read(self, sample: Tensor) -> Totals:
        """The sums, and the values of the sample, in one transfer to the host. Sums that overflow are the largest
        float64."""
        wide = sample.to(torch.float64)
        numbers = torch.cat(
            [
                self._digest.view(torch.float64),
                self._counts,
                torch.stack([self._total.sum(), self._squares.sum(), self._maximum.amax()]),
                torch.where(torch.cat([self._sketch, wide]).isfinite(), torch.cat([self._sketch, wide]), 0.0),
            ]
        ).cpu()
        nan, positive, negative, total, squares, maximum = numbers[1:7].tolist()
        return Totals(
            digest=int(numbers[:1].view(torch.int64)),
            total=min(max(total, -_LARGEST), _LARGEST),
            norm=min(sqrt(squares), _LARGEST),
            maximum=maximum,
            nonfinite=NonFinite(nan=int(nan), positive=int(positive), negative=int(negative))
            if nan or positive or negative
            else None,
            sketch=_little_endian(numbers[7 : 7 + BUCKETS]),
            sample=_little_endian(numbers[7 + BUCKETS :]),
        )


def _widen(values: Tensor, lead: int) -> Tensor:
    """The values as float64 after `lead` zeros, and followed by zeros up to a multiple of 64."""
    end = lead + len(values)
    wide = scratch("wide", end + -end % BUCKETS, torch.float64, values.device)
    wide[:lead] = 0
    wide[lead:end] = values
    wide[end:] = 0
    return wide


def _is_known_finite(total: Tensor) -> bool:
    """Whether the sums show that all elements are finite. Read on the CPU only: elsewhere this would wait for the
    device."""
    return total.device.type == "cpu" and isfinite(float(total.sum()))


def _little_endian(numbers: Tensor) -> bytes:
    return numbers.numpy().astype("<f8").tobytes()
