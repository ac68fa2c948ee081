"""Lengths of sequences that every degree of parallelism divides: a layout divides a sequence over tp x cp, and with cp
above 1 into an early and a late part for each rank of cp.

With two multiples of `unit`, the same layouts are possible, so that if one fits in memory, so does each shorter one.
"""

from __future__ import annotations

from trainyard.predict.inputs import layout_space

_LEAST_UNITS = 16
"""Fewest units in a length: padding adds at most this part of it."""


def unit(seq_len: int, ranks: int) -> int:
    """The number of which lengths near `seq_len` should be multiples: twice the ranks, which are the most that a
    sequence is divided over, or for short sequences the largest divisor of this that is fine enough."""
    most = max(1, seq_len // _LEAST_UNITS)
    return max(divisor for divisor in layout_space.divisors(2 * ranks) if divisor <= most) if ranks > 1 else 1


def pad(seq_len: int, ranks: int) -> int:
    """The next multiple of the unit."""
    step = unit(seq_len, ranks)
    return -(-seq_len // step) * step


def cut(seq_len: int, ranks: int) -> int:
    """The multiple of the unit before `seq_len`, or `seq_len` itself."""
    step = unit(seq_len, ranks)
    return seq_len // step * step
