"""Predictions of published fine-tunings, if the published rows are next to the checkout."""

from __future__ import annotations

from statistics import median

import pytest

from validation import fine_tuning, fit, rows

pytestmark = pytest.mark.skipif(not fit.PUBLISHED.is_file(), reason=f"no published rows: {fit.PUBLISHED}")


@pytest.fixture(scope="module")
def trainings() -> list[fine_tuning.PublishedFineTuning]:
    return fine_tuning.predict(rows.read(fit.PUBLISHED))


@pytest.mark.parametrize(("method", "count"), [("lora", 34), ("sft", 6)])
def test_median_of_predicted_tokens_is_near_the_measured(
    trainings: list[fine_tuning.PublishedFineTuning], method: str, count: int
) -> None:
    chosen = [each for each in trainings if each.method == method]
    assert len(chosen) == count
    assert 0.9 < median(each.ratio for each in chosen) < 1.1
    assert sum(each.holds for each in chosen) >= 0.8 * count


def test_held_out_lora_rows_are_within_a_fifth_but_one(trainings: list[fine_tuning.PublishedFineTuning]) -> None:
    """The exception, on 512 H200, took 1.5 times as long as the same work elsewhere."""
    ratios = {each.row.id: each.ratio for each in trainings if each.method == "lora" and not fit.is_fitted(each.row)}
    assert [name for name, ratio in ratios.items() if not 0.8 < ratio < 1.2] == ["mlp109"]


def test_table_has_every_training_and_a_median_of_each_method(
    trainings: list[fine_tuning.PublishedFineTuning],
) -> None:
    table = fine_tuning.table(trainings)
    assert len(table.rows) == len(trainings)
    assert len(table.notes) == 2
