"""Published generation and steps of post-training: the rows, and the ratios that the documentation states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainyard.predict.post_training.step_modes import STEP_INTERVAL
from validation.rollout import Compared, predict_generation, predict_step, read_rows

PAGE = Path(__file__).parents[2] / "docs" / "measured.md"


@pytest.fixture(scope="module")
def steps() -> list[Compared]:
    return [predict_step(row) for row in read_rows().steps]


def test_published_generation_takes_somewhat_less_than_predicted() -> None:
    rows = read_rows().generation
    assert all(row.source for row in rows)
    ratios = [row.published_s / predict_generation(row) for row in rows]
    assert [round(ratio, 2) for ratio in ratios] == documented("| generation |", 3)


def test_published_steps_are_in_the_assumed_interval(steps: list[Compared]) -> None:
    ratios = [step.ratio for step in steps]
    assert None not in ratios
    assert all(STEP_INTERVAL.low < (ratio or 0) < STEP_INTERVAL.high for ratio in ratios)
    assert [round(ratio or 0, 2) for ratio in ratios] == documented("| step |", 3)


def documented(header: str, column: int) -> list[float]:
    """The numbers of a column of the table of the page that begins with `header`."""
    lines = PAGE.read_text("utf-8").split(f"\n{header}", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [float(re.split(r"\s*\|\s*", line)[column + 1]) for line in lines]
