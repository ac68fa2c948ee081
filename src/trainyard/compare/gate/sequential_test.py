"""A sequential test of whether paired differences are above zero, with a look after every pair.

Null hypothesis: each difference is as likely as its negative. The order of the two runs of a pair is randomised, so for
identical runs the sign depends on the order only, whatever the noise and its drift. Given the sizes of n differences,
all 2^n sign patterns are then equally likely, and the fraction that would have stopped the test by now is counted, not
approximated. The statistic is Wilcoxon's signed-rank sum (Wilcoxon 1945, Biometrics Bulletin 1(6)); the error of
repeated looks is controlled by alpha spending (Lan & DeMets 1983, Biometrika 70(3)).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, log2
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput

Values = npt.NDArray[np.float64]
MAX_PAIRS = 24
"""Largest number of pairs: the sign patterns of more do not fit into a laptop's memory."""

_LOG_TOLERANCE = 1e-12
"""Tolerance for logarithms that should be integers but are slightly larger."""
_ROUNDING_TOLERANCE = 1e-9
"""Tolerance for products that should be integers but are slightly smaller."""


def find_first_look(alpha: float) -> int:
    """Smallest number of pairs at which the test can stop: with fewer, even a single sign pattern exceeds `alpha`."""
    return max(1, int(np.ceil(-log2(alpha) - _LOG_TOLERANCE)))


def spend_alpha(alpha: float, cap: int) -> Values:
    """Cumulative error (cap + 1,) that may be spent after 0, 1, ... `cap` pairs: that of a single pattern at the first
    look, then equal increments up to `alpha`."""
    first = find_first_look(alpha)
    if not 0 < alpha < 1 or not first <= cap <= MAX_PAIRS:
        least_percent = ceil(1000 * 0.5 ** max(1, cap)) / 10
        lower_rate = f", or --alpha {least_percent:g}% or more" if 1 <= cap < first and least_percent <= 20 else ""
        raise BadInput(
            f"{cap} pairs allow no verdict with an error rate of {100 * alpha:g} %: at least {first} and at most "
            f"{MAX_PAIRS} pairs are needed.",
            f"Pass --pairs from {first} to {MAX_PAIRS}{lower_rate}.",
        )
    looks = np.arange(cap + 1)
    spent_later = (alpha - 0.5**first) * (looks - first) / max(1, cap - first)
    return np.where(looks < first, 0.0, 0.5**first + spent_later)


class Look(NamedTuple):
    """A look after a pair. `critical_sum`: the test stops if twice the rank sum of the positive differences is at least
    this; None: it cannot stop here. `alarms`: the error so far, the fraction of all sign patterns that would have
    stopped."""

    critical_sum: int | None
    alarms: float


def find_stop(differences: Sequence[float] | Values, alpha: float, cap: int) -> int:
    """Number of differences after which the test stops because they are shown to be above zero, at the error rate
    `alpha` over at most `cap` looks; 0 if they are not."""
    values = np.asarray(differences, float)
    for count, look in enumerate(look_after_each(np.abs(values), alpha, cap), 1):
        if look.critical_sum is None:
            continue
        values_so_far = values[:count]
        if double_ranks(np.abs(values_so_far))[values_so_far > 0].sum() >= look.critical_sum:
            return count
    return 0


def look_after_each(sizes: Values, alpha: float, cap: int) -> Iterator[Look]:
    """Yields a look after each difference of these `sizes` (absolute values, in the order of the pairs), at most `cap`.
    `alpha`: error rate of all looks together. Time and memory double with each difference."""
    allowed_error = spend_alpha(alpha, cap)
    has_stopped = np.zeros(1, bool)  # for each pattern of signs so far, whose newest sign is the highest bit
    for count in range(1, min(len(sizes), cap) + 1):
        has_stopped = np.concatenate([has_stopped, has_stopped])  # with the new difference negative, then positive
        stopped_count = int(np.count_nonzero(has_stopped))
        # Number of further patterns that may stop at this look.
        allowance, critical_sum = int(allowed_error[count] * 2**count + _ROUNDING_TOLERANCE) - stopped_count, None
        if allowance > 0:
            sums = _rank_sums(sizes[:count])
            # [sum] -> number of patterns that have not stopped and have this sum or a larger one.
            patterns_with_sum_from = np.cumsum(np.bincount(sums[~has_stopped])[::-1])[::-1]
            critical_sums = np.flatnonzero(patterns_with_sum_from <= allowance)
            if critical_sums.size:
                critical_sum = int(critical_sums[0])
                stopped_count += int(patterns_with_sum_from[critical_sum])
                has_stopped |= sums >= critical_sum
        yield Look(critical_sum, stopped_count / 2**count)


def _rank_sums(sizes: Values) -> npt.NDArray[np.int64]:
    """Twice the rank sum of the positive values for every sign pattern (2^n,), with mid-ranks for ties and rank 0 for
    zeros. The index of a pattern has bit k if value k is positive."""
    sums = np.zeros(1, np.int64)
    for rank in double_ranks(sizes):
        sums = np.concatenate([sums, sums + rank])
    return sums


def double_ranks(sizes: Values) -> npt.NDArray[np.int64]:
    """Twice the rank of each size (n,) among those that are not zero, so that mid-ranks are integers."""
    ordered = np.sort(sizes[sizes > 0])
    below_count, up_to_count = np.searchsorted(ordered, sizes, "left"), np.searchsorted(ordered, sizes, "right")
    # The ranks of equal sizes are below_count + 1 to up_to_count; this is twice their mean.
    return np.where(sizes > 0, below_count + up_to_count + 1, 0)
