"""A loss curve as means over segments of steps: windows, and the tail, which measures the final loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.numerics.convergence.paired_curves import F64

TAIL = 0.2
"""Fraction of the steps that forms the tail."""
_MAX_WINDOWS = 16
"""Largest number of windows before the tail: a twentieth of the steps each."""
_MIN_STEPS_PER_WINDOW = 2
"""Smallest number of steps in a window."""


def starts(steps: int) -> NDArray[np.int64]:
    """Index of the first step of each segment of a curve of `steps` steps; the last segment is the tail. Curves of a
    few steps have fewer segments."""
    tail_start = min(round(steps * (1 - TAIL)), steps - 1)
    # Equal windows before the tail, as many as have `_MIN_STEPS_PER_WINDOW` steps.
    windows = min(_MAX_WINDOWS, tail_start // _MIN_STEPS_PER_WINDOW)
    window_starts = np.arange(windows) * tail_start // max(windows, 1)
    return np.append(window_starts, tail_start if windows else 0).astype(np.int64)


def means(rows: F64, segment_starts: NDArray[np.int64]) -> F64:
    """Means [run, segment] of rows [run, step]; `segment_starts`: first step of each segment."""
    counts = np.diff([*segment_starts, rows.shape[1]])
    return np.add.reduceat(rows, segment_starts, axis=1) / counts
