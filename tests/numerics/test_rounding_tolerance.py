"""Tolerances from jittered replicas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.numerics.rounding_tolerance import FLOOR, REPLICAS, relative_error, step_tolerances, tolerance_rule
from trainyard.train.step.outcome import Outcome

REFERENCE = [Outcome(2.0, 4.0)]


def tolerances(deviations: list[float]) -> tuple[float, float]:
    """The tolerances of one step from the relative deviations of the replicas' losses; norms deviate by twice them."""
    replicas = [[Outcome(2.0 * (1 + part), 4.0 * (1 + 2 * part))] for part in deviations]
    return step_tolerances(tolerance_rule(1), REFERENCE, replicas)[0]


@pytest.mark.parametrize("steps", [1, 4, 32])
def test_rounding_exceeds_tolerances_at_the_stated_rate(steps: int) -> None:
    """For normal deviations, over all comparisons of a mix."""
    rule = tolerance_rule(steps)
    random = np.random.default_rng(0)
    draws = 4_000_000 // steps
    exceeded = 0
    for _ in range(2 * steps):  # each is one comparison in `draws` mixes
        replicas = random.standard_normal((draws, REPLICAS), dtype=np.float32)
        limits = rule.factor * np.sqrt((replicas**2).mean(axis=1))
        exceeded += int((np.abs(random.standard_normal(draws)) > limits).sum())
    assert exceeded / draws == pytest.approx(rule.false_alarm, rel=0.15)


@given(st.lists(st.floats(1e-4, 1e-2), min_size=1, max_size=8), st.floats(1.5, 10))
def test_tolerances_scale_with_deviations(deviations: list[float], by: float) -> None:
    loss, norm = tolerances(deviations)
    assert norm == pytest.approx(2 * loss, rel=1e-9)
    assert tolerances([by * part for part in deviations])[0] == pytest.approx(by * loss, rel=1e-9)
    assert loss >= max(deviations)


def test_replicas_without_deviation_leave_the_floor() -> None:
    assert tolerances([0.0] * REPLICAS) == (FLOOR, FLOOR)
    assert step_tolerances(tolerance_rule(1), REFERENCE, []) == [(FLOOR, FLOOR)]


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_replicas_that_overflow_do_not_widen_tolerances(value: float) -> None:
    replicas = [[Outcome(value, value)], [Outcome(2.002, 4.008)]]
    assert step_tolerances(tolerance_rule(1), REFERENCE, replicas)[0] == pytest.approx(tolerances([1e-3]))


def test_two_overflows_are_equal_and_one_is_not() -> None:
    assert relative_error(float("inf"), float("inf")) == 0
    assert relative_error(1.0, float("inf")) == float("inf")
    assert relative_error(1.0, 0.0) == float("inf")
