"""Well-known trainings: measured steps against the intervals of their predictions, to which nothing was fitted."""

from __future__ import annotations

import pytest

from validation import named_trainings, rows

pytestmark = pytest.mark.skipif(
    not named_trainings.NAMED.is_file(), reason="the published measurements are not next to the checkout"
)


def test_most_named_trainings_are_in_their_interval() -> None:
    trainings = list(named_trainings.predict(rows.read(named_trainings.NAMED)))
    assert len(trainings) >= 10
    covered = [each.low <= each.row.seconds <= each.high for each in trainings]
    assert covered == [each.prediction.holds for each in trainings]
    # With a coverage of 80 %, a share below 60 % of 19 has a probability of 3 %.
    assert sum(covered) >= 0.6 * len(covered)


def test_no_named_training_is_wrong_by_a_factor_of_three() -> None:
    for each in named_trainings.predict(rows.read(named_trainings.NAMED)):
        assert 1 / 3 < each.row.seconds / each.seconds < 3, each.row.id
