"""Pseudo-random numbers that depend only on an integer, the same in every version of every library."""

from __future__ import annotations

from torch import Tensor


def scramble(numbers: Tensor) -> Tensor:
    """Pseudo-random int64 of each int64 (the output function of splitmix64; Steele, Lea, Flood 2014)."""
    numbers = (numbers + 1) * -0x61C8864680B583EB
    numbers = (numbers ^ (numbers >> 30 & (1 << 34) - 1)) * -0x40A7B892E31B1A47
    numbers = (numbers ^ (numbers >> 27 & (1 << 37) - 1)) * -0x6B2FB644ECCEEE15
    return numbers ^ (numbers >> 31 & (1 << 33) - 1)
