"""Medians that stay what they are made of: integers of integers, and one of those that there are."""

from __future__ import annotations

from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
_T = TypeVar("_T", covariant=True)


class _Ordered(Protocol[_T]):
    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> _T: ...


def lower_median(ordered: _Ordered[_T]) -> _T:
    """The middle one of one or more things in order; of two middle ones, the lower."""
    return ordered[(len(ordered) - 1) // 2]


def medians(values: I64, group: I64, groups: int) -> tuple[I64, NDArray[np.bool_]]:
    """The median of each group's values (of two middle ones, the lower half way between), and which have any."""
    order = np.lexsort((values, group))
    counts = np.bincount(group, minlength=groups)
    some = counts > 0
    first = (np.cumsum(counts) - counts)[some]
    low, high = (values[order[first + (counts[some] - 1 + odd) // 2]] for odd in (0, 1))
    found = np.zeros(groups, np.int64)
    found[some] = low + (high - low) // 2
    return found, some
