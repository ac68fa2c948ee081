"""Small trainings that wait for their host, next to their predictions."""

from __future__ import annotations

import pytest

from validation import small_models

pytestmark = pytest.mark.skipif(
    not small_models.STEP_TIMES.is_file(), reason="the published measurements are not next to the checkout"
)


def test_steps_of_small_trainings() -> None:
    compared = {(each.test, each.machine): each for each in small_models.predict()}
    assert len(compared) == 2 * len(small_models.LAYOUTS)
    # Medians by hand over the recorded runs on each machine.
    plain = "gpt3_mcore_te_tp1_pp1_resume_torch_dist_dist_optimizer"
    assert compared[plain, "h100"].measured_s == pytest.approx(0.051, abs=0.001)
    assert compared[plain, "a100"].measured_s == pytest.approx(0.081, abs=0.001)
    # The tests compute more than a training, so no step is predicted to be longer.
    assert all(each.plan.ledger.wall_ns < 1e9 * each.measured_s for each in compared.values())
    assert sum(each.holds for each in compared.values()) >= 3
