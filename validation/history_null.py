"""Recompute the table of `trainyard.compare.history.statistics.critical_values`: `python -m validation.history_null`.

For series without a change, of each length: the critical strength at which 0.7 % of them show one, for independent
noise (of any distribution: the statistic uses ranks only) and with autocorrelation 0.5.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.statistics.autocorrelation import estimate_variance_inflation
from trainyard.compare.history.statistics.change_points import find_change_points
from trainyard.compare.history.statistics.critical_values import look_up_critical
from trainyard.compare.history.statistics.split_scan import SplitScan

ALPHA = 0.007
"""Below the documented 1 %, to allow for the table's own error."""
LEAST = 2.0
SERIES = {12: 20000, 14: 20000, 16: 20000, 20: 20000, 30: 16000, 50: 16000, 100: 16000, 200: 16000, 500: 6000,
          1000: 4000, 3000: 1200, 10000: 300}  # fmt: skip


def autocorrelated(rng: np.random.Generator, n: int, correlation: float) -> NDArray[np.float64]:
    """Autoregression of order 1 with variance 1, of shape (n,)."""
    burn = 60
    shocks = rng.standard_normal(n + burn) * np.sqrt(1 - correlation**2)
    if not correlation:
        return shocks[burn:]
    values = np.empty(n + burn)
    last = 0.0
    for at, shock in enumerate(shocks.tolist()):
        last = correlation * last + shock
        values[at] = last
    return values[burn:]


def reached(values: NDArray[np.float64]) -> float:
    """The least critical strength at which no change of the series is reported, to 0.005, and at least LEAST."""
    scan = SplitScan()
    scan.extend(values)
    splits, wide = scan.splits(), float(estimate_variance_inflation(values[None])[0])
    low, high = LEAST, float(splits.strengths(wide).max())
    if high <= low or not find_change_points(values, splits, wide, low):
        return low
    while high - low > 0.005:
        middle = (low + high) / 2
        low, high = (middle, high) if find_change_points(values, splits, wide, middle) else (low, middle)
    return high


def rows(scale: float) -> Iterator[tuple[int, int, list[float]]]:
    rng = np.random.default_rng(20250)
    for n, most in SERIES.items():
        count = max(100, round(most * scale))
        strengths = []
        for correlation in (0.0, 0.5):
            drawn = [reached(autocorrelated(rng, n, correlation)) for _ in range(count)]
            strengths.append(float(np.quantile(drawn, 1 - ALPHA)))
            count = max(100, count // 4)
        yield n, max(100, round(most * scale)), strengths


def main(scale: float = 1.0) -> None:
    print(f"{'points':>7} {'series':>7} {'no memory':>10} {'autocorrelation 0.5':>20} {'table':>7}")
    for n, count, (independent, correlated) in rows(scale):
        print(f"{n:7d} {count:7d} {independent:10.3f} {correlated:20.3f} {look_up_critical(n):7.2f}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
