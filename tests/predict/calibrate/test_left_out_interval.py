"""The prediction interval from errors of left-out jobs: its coverage, and when there is none."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from trainyard.predict.calibrate.left_out_interval import prediction_interval


@pytest.mark.parametrize("jobs", [4, 10])
def test_interval_holds_four_of_five_further_jobs(jobs: int) -> None:
    rng = np.random.default_rng(jobs)
    errors = rng.normal(0.0, 0.1, (2000, jobs + 1))
    held = 0
    for *seen, new in errors.tolist():
        interval = prediction_interval(seen)
        assert interval is not None
        held += interval[0] <= exp(new) <= interval[1]
    # Between 80 % and what the extension to 1 adds.
    assert 0.78 <= held / len(errors) <= 0.84


def test_interval_has_the_quantile_of_student_t() -> None:
    errors = [-0.1, 0.1, -0.1, 0.1]
    # t(0.9, 3) = 1.6377; s = 0.11547
    half = 1.6377 * 0.11547 * (5 / 4) ** 0.5
    assert prediction_interval(errors) == pytest.approx((exp(-half), exp(half)), abs=1e-3)


def test_interval_includes_the_prediction_and_is_bounded() -> None:
    assert prediction_interval([log(2.0)] * 4) == (1.0, 2.0)
    wide = prediction_interval([-9.0, 9.0, -9.0, 9.0])
    assert wide == (0.01, 100.0)


def test_three_jobs_have_no_interval() -> None:
    assert prediction_interval([0.1, -0.1, 0.05]) is None
