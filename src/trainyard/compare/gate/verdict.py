"""Is one figure worse than before? One verdict on paired runs, and how sure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, expm1, log1p
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np

from trainyard.compare.gate import sequential_test
from trainyard.errors import BadInput

MARGIN, ALPHA, PAIRS = 0.03, 0.01, 20
"""A slowdown that matters, the error that either answer may have, and pairs of runs at most."""
_NEGLIGIBLE = 0.1
"""Of the margin: what is nobody's concern, however sure it is. A byte more of memory in each run is no regression."""
_POWER = 0.9
_RANKS = 1.05
"""Signed ranks need this many times the pairs that normal differences need (efficiency 3/pi: Lehmann 1975, ch. 4)."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """`alpha`: the error of "worse" where nothing (or next to nothing) is, and of "not worse" where it is by `margin`.
    `cap`: pairs at most."""

    alpha: float = ALPHA
    margin: float = MARGIN
    cap: int = PAIRS

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise BadInput(f"a margin of {self.margin:g} is no share between 0 and 1.", "3 % is 0.03.")
        if not 0 < self.alpha <= 0.2:
            raise BadInput(f"an error rate of {self.alpha:g} is none between 0 and 0.2.", "1 % is 0.01.")
        sequential_test.spent(self.alpha, self.cap)

    @property
    def negligible(self) -> float:
        """The slowdown that "worse" must be above: a share."""
        return _NEGLIGIBLE * self.margin

    def among(self, metrics: int) -> Rule:
        """For each of so many metrics, so that all together err as seldom as one alone (Bonferroni)."""
        return msgspec.structs.replace(self, alpha=self.alpha / metrics)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Of head against base. `change`: by how much the metric is worse (below zero: better), a share; `low`, `high`:
    what it is at least and at most, each with the rule's error, however often it was looked at; None: nobody can tell
    yet. A bound that an earlier look showed stays shown, so that `change`, which is of all pairs, may lie outside the
    bounds. `pairs`: those that were looked at when it was decided, or all. `more`: pairs that would probably settle it,
    where it is not."""

    metric: str
    says: Literal["worse", "not worse", "unclear"]
    pairs: int
    change: float
    low: float | None
    high: float | None
    rule: Rule
    more: int | None = None


def judge(metric: str, worse: Sequence[float], rule: Rule) -> Verdict:
    """`worse`: of each pair, in the order they were run, the logarithm of how many times as bad head was. "Worse" is
    asked first, then "not worse". Raises `BadInput` for what is not a number."""
    values = np.asarray(worse, float)
    if not np.isfinite(values).all():
        raise BadInput(f"{metric}: a pair's ratio is {values[~np.isfinite(values)][0]}, no number.")
    margin = log1p(rule.margin)
    is_worse = sequential_test.stops(values - log1p(rule.negligible), rule.alpha, rule.cap)
    is_not = sequential_test.stops(margin - values, rule.alpha, rule.cap)
    says = "unclear"
    if is_worse and (not is_not or is_worse <= is_not):
        says = "worse"
    elif is_not:
        says = "not worse"
    pairs = {"worse": is_worse, "not worse": is_not, "unclear": len(values)}[says]
    used = values[:pairs]
    change = float(np.median(_walsh(used))) if pairs else 0.0
    low, high = least(used, rule), least(-used, rule)
    return Verdict(
        metric=metric, says=says, pairs=pairs, change=expm1(change), rule=rule,
        low=None if low is None else expm1(low), high=None if high is None else expm1(-high),
        more=_more(used, rule) if says == "unclear" else None,
    )  # fmt: skip


def least(values: np.ndarray, rule: Rule) -> float | None:
    """What the differences are shown to be above, at any look; None where they are shown to be above nothing.

    The statistic changes at the means of two of them only (Walsh averages: Hodges & Lehmann 1963, Annals of
    Mathematical Statistics 34(2)), so that one shift between each two of those is tried: the answer is the end of the
    last that the test rejects."""
    ends = np.unique(_walsh(values))
    shifts = np.concatenate([ends[:1] - 1, (ends[1:] + ends[:-1]) / 2])
    low, high = 0, len(ends)  # all before `low` are rejected, none from `high` on
    while low < high:
        at = (low + high) // 2
        if sequential_test.stops(values - shifts[at], rule.alpha, rule.cap):
            low = at + 1
        else:
            high = at
    return float(ends[low - 1]) if low else None


def _walsh(values: np.ndarray) -> np.ndarray:
    one, other = np.triu_indices(len(values))
    return (values[one] + values[other]) / 2


def _more(values: np.ndarray, rule: Rule) -> int | None:
    """Pairs beyond these that settle it in nine cases of ten, should the rest be like these; None where it cannot be
    told. As the normal approximation has it, of whichever answer is nearer."""
    if len(values) < 2:
        return max(0, sequential_test.first_look(rule.alpha) - len(values))
    centre, spread = float(np.median(values)), float(np.std(values, ddof=1))
    distance = max(centre - log1p(rule.negligible), log1p(rule.margin) - centre)
    if not spread:
        needed = sequential_test.first_look(rule.alpha)
    else:
        sure = NormalDist().inv_cdf(1 - rule.alpha) + NormalDist().inv_cdf(_POWER)
        needed = ceil(_RANKS * (sure * spread / distance) ** 2)
    needed = max(needed, sequential_test.first_look(rule.alpha))
    return max(1, needed - len(values))
