"""The predicted ratio of two layouts' steps with its 80 % interval, which decides whether they are tied.

Two layouts of one model on one machine share a part of the prediction's error, which cancels in their ratio; the
interval of a step is therefore not that of the ratio. Errors of accounts in which both spend the same share of their
step cancel; the more of the step is in different accounts, the less the two errors are correlated. The variance of the
logarithm of the ratio is `SPREAD` squared times 1 - exp(-distance / `CORRELATION_DISTANCE`): an exponential variogram
(Cressie 1993, Statistics for Spatial Data, section 2.3). `python -m validation.layout_ratios` compares it with
published measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, expm1, log, sqrt

import msgspec

from trainyard.errors import BadInput
from trainyard.ledger import Ledger

SPREAD = 0.128
"""Standard deviation of the logarithm of measured over predicted ratio, of two layouts without a common account. With
it the 80 % interval holds 80 % of the pairs of each published source (`validation.layout_ratios`)."""
CORRELATION_DISTANCE = 0.1
"""Distance of two layouts at which the correlation of their errors is 1/e. Any value from 0.05 to 1 describes the
published pairs of layouts about as well if `SPREAD` is fitted to it."""
_QUANTILE = 1.2816
"""Quantile of the normal distribution: 80 % of it is within so many standard deviations of the mean."""
LARGEST_TIED_RATIO = exp(_QUANTILE * SPREAD)
"""No step that is longer than the fastest by more than this factor can be tied with it."""


class StepRatio(msgspec.Struct, frozen=True, kw_only=True):
    """A step over that of the fastest layout with `low` to `high`, the 80 % prediction interval of this ratio. `tied`:
    the interval includes 1, so that the prediction cannot show which of the two is faster."""

    ratio: float
    low: float
    high: float
    tied: bool

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.ratio <= self.high or self.tied != (self.low <= 1 <= self.high):
            raise BadInput(f"a ratio of {self.ratio:g} with the interval {self.low:g} to {self.high:g}.")


def step_ratio(ledger: Ledger, fastest: Ledger) -> StepRatio:
    """The step of one predicted ledger over that of the fastest."""
    ratio = ledger.wall_ns / fastest.wall_ns
    factor = exp(_QUANTILE * log_spread(ledger_distance(ledger, fastest)))
    low, high = ratio / factor, ratio * factor
    return StepRatio(ratio=ratio, low=low, high=high, tied=low <= 1 <= high)


def ledger_distance(first: Ledger, second: Ledger) -> float:
    """The share of the step that is in different accounts, from 0 to 1: the total variation distance of the shares of
    the accounts."""
    return share_distance(
        *({str(account): ns for account, ns in each.by_account().items()} for each in (first, second))
    )


def share_distance(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """The total variation distance of two steps by account: account -> time in any unit."""
    totals = sum(first.values()), sum(second.values())
    return 0.5 * sum(
        abs(first.get(account, 0) / totals[0] - second.get(account, 0) / totals[1]) for account in {**first, **second}
    )


def log_spread(distance: float, spread: float = SPREAD) -> float:
    """Standard deviation of the logarithm of a ratio, measured over predicted, of layouts with this ledger distance."""
    return spread * sqrt(-expm1(-distance / CORRELATION_DISTANCE))


def needed_spread(error: float, distance: float) -> float:
    """The least `spread` with which the 80 % interval of a pair includes the measured ratio. `error`: logarithm of
    measured over predicted ratio."""
    return abs(error) / (_QUANTILE * log_spread(distance, 1.0)) if distance > 0 else (0.0 if not error else log(2) * 64)
