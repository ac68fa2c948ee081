"""Intervals booked per CPU-second: `python -m benchmarks.booking` prints one number."""

from __future__ import annotations

import time

import numpy as np

from trainyard import words
from trainyard.trace.booking.intervals import Intervals, book

INTERVALS, PARTS, ACCOUNTS = 1_000_000, 10, 40


def intervals_per_s() -> float:
    """A window of a second in ten parts: short work in nine kinds and forty accounts, overlapping at random."""
    chance = np.random.default_rng(0)
    start = chance.integers(0, 10**9, INTERVALS)
    kinds = len(words.KINDS)
    key = chance.integers(0, ACCOUNTS, INTERVALS).astype(np.int32)
    intervals = Intervals(start, start + chance.integers(1, 5_000, INTERVALS), (key % kinds).astype(np.int8), key)
    bounds = np.linspace(0, 10**9, PARTS + 1).astype(np.int64)
    begin = time.process_time()
    booking = book(intervals, bounds, ACCOUNTS, kinds)
    spent = time.process_time() - begin
    if booking.owned.sum() != bounds[-1] - bounds[0]:
        raise AssertionError("the booking does not balance")
    return INTERVALS / spent


if __name__ == "__main__":
    print(intervals_per_s())
