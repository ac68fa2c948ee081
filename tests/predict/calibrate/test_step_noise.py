"""The noise of a run's step time, against simulated runs."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.predict.calibrate.step_noise import step_noise


@pytest.mark.parametrize(("step_sd", "repeat_sd"), [(0.1, 0.0), (0.02, 0.1)])
def test_noise_is_the_standard_error_of_the_median(step_sd: float, repeat_sd: float) -> None:
    rng = np.random.default_rng(7)
    repeats = rng.normal(0, repeat_sd, (200, 4, 1))
    walls_ns = np.exp(repeats + rng.normal(0, step_sd, (200, 4, 25))) * 1e8
    medians = np.log(np.median(walls_ns.reshape(200, -1), axis=1))
    noises = [step_noise(run.astype(np.int64).tolist()) for run in walls_ns]
    # The root mean square of the larger of two estimates exceeds that of either.
    assert np.std(medians) * 0.85 <= np.sqrt(np.mean(np.square(noises))) <= np.std(medians) * 1.35


@pytest.mark.parametrize("repeats", [[], [[10]], [[100, 100, 100]], [[100], [100]]])
def test_equal_or_single_steps_have_no_noise(repeats: list[list[int]]) -> None:
    assert step_noise(repeats) == 0
