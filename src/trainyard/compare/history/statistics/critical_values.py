"""How strong a split must be, in the stretch that shows it and again between its neighbours, so that a series without a
change shows one in less than 1 of 100 cases.

Ranks have one distribution under all noise that is exchangeable, so one table holds for all of it; autocorrelated noise
is held to it by its inflation. `python -m validation.history_null` makes the table.
"""

from __future__ import annotations

import numpy as np

ALPHA = 0.01
_TABLE = {12: 2.70, 14: 2.84, 16: 2.95, 20: 3.05, 30: 3.18, 50: 3.34, 100: 3.52, 200: 3.68, 500: 3.84, 1000: 4.00,
          3000: 4.20, 10000: 4.40}  # fmt: skip
FEWEST = min(_TABLE)


def critical(n: int) -> float:
    """Of a series of `n` points, FEWEST or more; between the table's entries, and beyond them, by the logarithm."""
    sizes, strengths = np.log(list(_TABLE)), list(_TABLE.values())
    if n <= max(_TABLE):
        return float(np.interp(np.log(n), sizes, strengths))
    slope = (strengths[-1] - strengths[-2]) / (sizes[-1] - sizes[-2])
    return float(strengths[-1] + slope * (np.log(n) - sizes[-1]))
