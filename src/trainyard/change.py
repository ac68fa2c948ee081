"""Change: a supposed change of the steps of a trace, as a diagnosis rule states it and a replay applies it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A supposed change. `text`: its syntax for `trainyard trace what-if --change`."""

    text: str


class ChangedRows(NamedTuple):
    """The changed work and idle time of rank `rank`. `rows`: intervals of its `Booked`; `remaining`: the fraction of
    each one's length that remains. `idle_start`, `idle_stop`: idle stretches in ns, disjoint and sorted, that vanish;
    `ended_by`: the interval that ends each stretch, -1 for none."""

    rank: int
    rows: I64
    remaining: F64
    idle_start: I64
    idle_stop: I64
    ended_by: I64


class RowChange(Change, frozen=True, kw_only=True, eq=False):
    """A change of single intervals, which no other syntax can name: `text` is `without:` and the name of the rule that
    selected them."""

    ranks: tuple[ChangedRows, ...]


WITHOUT = "without:"
"""Prefix of the change that removes the cause of a finding: `without:straggler`."""
