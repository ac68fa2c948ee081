"""Tolerances of a comparison, derived from rounding.

A layout adds the same values in another order, so that its results differ by rounding, and training amplifies this from
step to step. Replicas of the reference in which every sum moves by one unit in the last place (`ulp_jitter.py`) show by
how much: a tolerance is a multiple of their deviations, for each step and for loss and gradient norm separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, sqrt
from typing import NamedTuple

import msgspec

from trainyard.stats import student_t
from trainyard.train.step.outcome import Outcome

REPLICAS = 8
"""Replicas of a reference. More narrow the tolerance: to four fifths with 16, but take twice the time."""
FALSE_ALARM = 1e-3
"""Probability that a layout that differs by rounding only exceeds a tolerance in any of its steps."""
FLOOR = 4 * 2.0**-23
"""Smallest tolerance: 4 units in the last place of float32, in which losses and norms are reported."""


class ToleranceRule(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of tolerances: `factor` times the root mean square deviation of `replicas` jittered replicas from the
    reference, at least `floor`. `false_alarm`: probability that rounding exceeds the tolerance in any step."""

    replicas: int
    factor: float
    floor: float
    false_alarm: float


class StepTolerance(NamedTuple):
    """The largest relative errors allowed of one step."""

    loss: float
    grad_norm: float


def tolerance_rule(steps: int) -> ToleranceRule:
    """The rule for a comparison of losses and gradient norms over `steps` steps.

    The deviation of a layout has the distribution of the replicas': divided by their root mean square, Student's t
    with as many degrees of freedom as there are replicas, if deviations are normal. The probability of a false alarm is
    divided by the number of comparisons (Bonferroni).
    """
    factor = student_t.quantile(1 - FALSE_ALARM / (2 * 2 * max(1, steps)), REPLICAS)
    return ToleranceRule(replicas=REPLICAS, factor=round(factor, 3), floor=FLOOR, false_alarm=FALSE_ALARM)


def step_tolerances(
    rule: ToleranceRule, reference: Sequence[Outcome], replicas: Sequence[Sequence[Outcome]]
) -> list[StepTolerance]:
    """The tolerances of each step of `reference`, given its jittered replicas."""
    return [
        StepTolerance(
            loss=_tolerance(rule, [relative_error(step.loss, expected.loss) for step in steps]),
            grad_norm=_tolerance(rule, [relative_error(step.grad_norm, expected.grad_norm) for step in steps]),
        )
        for expected, *steps in zip(reference, *replicas)
    ]


def _tolerance(rule: ToleranceRule, deviations: Sequence[float]) -> float:
    """The tolerance of one value from the replicas' relative deviations. Those that are not finite (a replica that
    overflows where the reference does not) are left out, so that they cannot widen it."""
    squares = [deviation**2 for deviation in deviations if isfinite(deviation)]
    return max(rule.floor, rule.factor * sqrt(sum(squares) / len(squares))) if squares else rule.floor


def relative_error(value: float, expected: float) -> float:
    """The relative error of `value`; infinite if it is not a number, or if it differs from an expected 0."""
    if value == expected:
        return 0.0
    error = abs(value - expected) / abs(expected) if expected else float("inf")
    return float("inf") if error != error else error  # NaN is not equal to itself
