"""The verdict on one metric of paired runs: worse, not worse or unclear, with error rate and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, expm1, log1p
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np

from trainyard.compare.gate import sequential_test
from trainyard.errors import BadInput

MARGIN, ALPHA, MAX_PAIRS = 0.03, 0.01, 20
"""Defaults: the slowdown that matters, the error rate of either answer, and the largest number of pairs."""
_NEGLIGIBLE_SHARE = 0.1
"""Fraction of the margin below which a change is negligible, however significant: a byte more of memory in each run is
not a regression."""
_SETTLING_POWER = 0.9
"""Probability with which the estimated number of further pairs settles a verdict."""
_RANK_TEST_PAIRS = 1.05
"""Signed ranks need this many times the pairs that normal differences need (efficiency 3/pi: Lehmann 1975, ch. 4)."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """`alpha`: error rate of "worse" for a negligible change, and of "not worse" for a change of `margin`.
    `max_pairs`: the largest number of pairs."""

    alpha: float = ALPHA
    margin: float = MARGIN
    max_pairs: int = MAX_PAIRS

    def __post_init__(self) -> None:
        """Raises `BadInput` for a margin, an error rate or a number of pairs that allows no test."""
        if not 0 < self.margin < 1:
            raise BadInput(f"a margin of {self.margin:g} is not between 0 and 1.", "3 % is 0.03.")
        if not 0 < self.alpha <= 0.2:
            raise BadInput(f"an error rate of {self.alpha:g} is not between 0 and 0.2.", "1 % is 0.01.")
        sequential_test.spend_alpha(self.alpha, self.max_pairs)

    @property
    def negligible(self) -> float:
        """The slowdown, as a fraction, that "worse" must exceed."""
        return _NEGLIGIBLE_SHARE * self.margin

    def among(self, metrics: int) -> Rule:
        """The rule for each of `metrics` tests, so that `alpha` is the error rate of all together (Bonferroni)."""
        return msgspec.structs.replace(self, alpha=self.alpha / metrics)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Head against base. `change`: relative change, positive is worse; `low`, `high`: its lower and upper bound, each
    with the rule's error rate over all looks, None if not yet known. A bound from an earlier look remains valid, so
    `change`, an estimate from all pairs, may lie outside the bounds. `pairs`: number at the time of the decision, or of
    all. `more_pairs`: further pairs that would probably settle an unclear verdict."""

    metric: str
    outcome: Literal["worse", "not worse", "unclear"]
    pairs: int
    change: float
    low: float | None
    high: float | None
    rule: Rule
    more_pairs: int | None = None


def judge(metric: str, log_ratios: Sequence[float], rule: Rule) -> Verdict:
    """Judges a metric. `log_ratios`: of head to base, one per pair, positive if head is worse, in the order of the
    runs. "Worse" is tested first, then "not worse". Raises `BadInput` for a value that is not finite."""
    values = np.asarray(log_ratios, float)
    if not np.isfinite(values).all():
        raise BadInput(f"{metric}: the log ratio of a pair is {values[~np.isfinite(values)][0]}, which is not finite.")
    margin = log1p(rule.margin)
    # Number of pairs after which each answer was certain at the error rate; 0 if it never was.
    worse_after = sequential_test.find_stop(values - log1p(rule.negligible), rule.alpha, rule.max_pairs)
    not_worse_after = sequential_test.find_stop(margin - values, rule.alpha, rule.max_pairs)
    result = "unclear"
    if worse_after and (not not_worse_after or worse_after <= not_worse_after):
        result = "worse"
    elif not_worse_after:
        result = "not worse"
    pairs = {"worse": worse_after, "not worse": not_worse_after, "unclear": len(values)}[result]
    used_values = values[:pairs]
    change = float(np.median(_walsh_averages(used_values))) if pairs else 0.0
    low, high = find_lower_bound(used_values, rule), find_lower_bound(-used_values, rule)
    return Verdict(
        metric=metric, outcome=result, pairs=pairs, change=expm1(change), rule=rule,
        low=None if low is None else expm1(low), high=None if high is None else expm1(-high),
        more_pairs=_estimate_more_pairs(used_values, rule) if result == "unclear" else None,
    )  # fmt: skip


def find_lower_bound(values: np.ndarray, rule: Rule) -> float | None:
    """Lower confidence bound of the shift of `values` (log ratios) over all looks; None if the test rejects no shift.

    The statistic changes only at the means of two differences (Walsh averages: Hodges & Lehmann 1963, Annals of
    Mathematical Statistics 34(2)), so one shift between each two of these is tested: the bound is the upper end of the
    last interval that the test rejects.
    """
    averages = np.unique(_walsh_averages(values))
    shifts = np.concatenate([averages[:1] - 1, (averages[1:] + averages[:-1]) / 2])
    low, high = 0, len(averages)  # all before `low` are rejected, none from `high` on
    while low < high:
        middle = (low + high) // 2
        if sequential_test.find_stop(values - shifts[middle], rule.alpha, rule.max_pairs):
            low = middle + 1
        else:
            high = middle
    return float(averages[low - 1]) if low else None


def _walsh_averages(values: np.ndarray) -> np.ndarray:
    """The means of all pairs of values, each value paired with itself too."""
    first, second = np.triu_indices(len(values))
    return (values[first] + values[second]) / 2


def _estimate_more_pairs(values: np.ndarray, rule: Rule) -> int | None:
    """Further pairs that settle the verdict with a probability of 90 % if they are like these, by the normal
    approximation for the answer that needs fewer pairs. `values`: log ratios of the pairs so far."""
    if len(values) < 2:
        return max(0, sequential_test.find_first_look(rule.alpha) - len(values))
    centre, spread = float(np.median(values)), float(np.std(values, ddof=1))
    # Distance of the estimate from the null hypothesis of "worse", and from that of "not worse".
    distance = max(centre - log1p(rule.negligible), log1p(rule.margin) - centre)
    if not spread:
        needed = sequential_test.find_first_look(rule.alpha)
    else:
        deviations = NormalDist().inv_cdf(1 - rule.alpha) + NormalDist().inv_cdf(_SETTLING_POWER)
        needed = ceil(_RANK_TEST_PAIRS * (deviations * spread / distance) ** 2)
    needed = max(needed, sequential_test.find_first_look(rule.alpha))
    return max(1, needed - len(values))
