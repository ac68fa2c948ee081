"""A loss curve as means over stretches of steps: windows up to the tail, and the tail, which is what was learned."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.numerics.convergence.paired_curves import F64

TAIL = 0.2
"""The share of the steps that counts as what was learned in the end."""
_WINDOWS = 16
"""Before the tail, at most; a twentieth of the steps each."""
_LEAST = 2
"""Steps in a window."""


def starts(steps: int) -> NDArray[np.int64]:
    """Where each segment of so many steps begins; the last is the tail. Of fewer than 10 steps, less."""
    tail = min(round(steps * (1 - TAIL)), steps - 1)
    windows = min(_WINDOWS, tail // _LEAST)
    before = np.arange(windows) * tail // max(windows, 1)
    return np.append(before, tail if windows else 0).astype(np.int64)


def means(rows: F64, at: NDArray[np.int64]) -> F64:
    """[run, segment] of [run, step]."""
    counts = np.diff([*at, rows.shape[1]])
    return np.add.reduceat(rows, at, axis=1) / counts
