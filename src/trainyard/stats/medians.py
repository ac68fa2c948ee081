"""Medians; the lower ones are always one of the values, or an integer if the values are integers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
_T = TypeVar("_T", covariant=True)


class _Ordered(Protocol[_T]):
    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> _T: ...


def lower_median(ordered: _Ordered[_T]) -> _T:
    """The median of a sorted, non-empty sequence; the lower of the two middle values if its length is even."""
    return ordered[(len(ordered) - 1) // 2]


def median(values: Iterable[float]) -> float:
    """The median of at least one value; the mean of the two middle values if their number is even."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if low == high else (low + high) / 2


def medians(values: I64, group: I64, groups: int) -> tuple[I64, NDArray[np.bool_]]:
    """Median of the values of each group (of two middle values, the mean rounded down), and a mask of the groups that
    have values. `values`, `group`: (n,); both results: (groups,)."""
    order = np.lexsort((values, group))
    counts = np.bincount(group, minlength=groups)
    some = counts > 0
    first = (np.cumsum(counts) - counts)[some]
    low, high = (values[order[first + (counts[some] - 1 + odd) // 2]] for odd in (0, 1))
    result = np.zeros(groups, np.int64)
    result[some] = low + (high - low) // 2
    return result, some
