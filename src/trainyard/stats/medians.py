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
    """(Median of the values of each group, mask of the groups that have values); of two middle values, the median is
    the mean rounded down.

    `values`, `group`: (n,), the group from 0 to `groups` - 1; both results: (groups,); the median of a group without
    values is 0.
    """
    order = np.lexsort((values, group))  # by group, then by value
    counts = np.bincount(group, minlength=groups)
    has_values = counts > 0
    first = (np.cumsum(counts) - counts)[has_values]  # position in `order` of each group's lowest value
    low = values[order[first + (counts[has_values] - 1) // 2]]
    high = values[order[first + counts[has_values] // 2]]
    result = np.zeros(groups, np.int64)
    result[has_values] = low + (high - low) // 2
    return result, has_values
