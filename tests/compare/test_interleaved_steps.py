"""Steps of layouts that were run in interleaved rounds: means, ratios and whether they are separated."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest

from trainyard.compare.interleaved_steps import ALPHA, compare_with_fastest, mean_step
from trainyard.stats.student_t import quantile


def test_mean_step_is_geometric_with_students_interval() -> None:
    step = mean_step([10.0, 20.0, 40.0])
    half_width = quantile(1 - ALPHA / 2, 2) * 0.6931471805599453 / sqrt(3)
    assert step.step_ns == pytest.approx(20)
    assert (step.low_ns, step.high_ns) == (pytest.approx(20 / exp(half_width)), pytest.approx(20 * exp(half_width)))


def test_single_round_has_no_interval_and_separates_nothing() -> None:
    assert (mean_step([7.0]).low_ns, mean_step([7.0]).high_ns) == (None, None)
    fastest, slower = compare_with_fastest([[10.0], [30.0]])
    assert (fastest.ratio, slower.ratio, slower.low, slower.separated) == (1, pytest.approx(3), None, False)


def test_drift_between_rounds_cancels_in_the_ratio() -> None:
    drift = [1.0, 2.0, 4.0, 8.0]
    slower, fastest = compare_with_fastest(
        [[1.1 * factor * noise for factor, noise in zip(drift, (1.0, 1.01, 0.99, 1.0))], drift]
    )
    assert slower.ratio == pytest.approx(1.1, rel=0.01)
    assert slower.separated
    assert not fastest.separated


def test_bonferroni_widens_intervals_with_more_layouts() -> None:
    steps = [[10.0, 10.2, 9.9], [10.5, 10.4, 10.6]]
    pair, three = compare_with_fastest(steps)[1], compare_with_fastest([*steps, [12.0, 12.1, 12.2]])[1]
    assert pair.low is not None
    assert three.low is not None
    assert three.low < pair.low


def test_equal_layouts_are_rarely_separated() -> None:
    measurements = np.exp(np.random.default_rng(1).normal(0, 0.1, (400, 4, 5)))  # [measurement, layout, round]
    separated = [any(ratio.separated for ratio in compare_with_fastest(steps)) for steps in measurements.tolist()]
    assert sum(separated) <= 400 * ALPHA
