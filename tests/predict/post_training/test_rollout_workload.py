"""The distribution of response lengths, and the numbers of a step that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.predict.post_training.rollout_workload import RolloutWorkload

GRID = (np.arange(4000) + 0.5) / 4000


def workload(**changes: Any) -> RolloutWorkload:
    sizes = {
        "prompts": 8, "samples": 4, "prompt_tokens": 100, "response_tokens": 1000, "max_response_tokens": 4000,
    }  # fmt: skip
    return RolloutWorkload(**(sizes | changes))


@given(st.integers(50, 3900), st.floats(0.05, 2.0))
def test_lengths_have_the_requested_mean_and_maximum(mean: int, cv: float) -> None:
    lengths = workload(response_tokens=mean, length_cv=cv).lengths_at(GRID)
    assert lengths.min() >= 1
    assert lengths.max() <= 4000
    assert lengths.mean() == pytest.approx(mean, rel=0.01)
    assert (np.diff(lengths) >= 0).all()


@given(st.integers(50, 3800), st.integers(1, 100), st.floats(0.0, 2.0))
def test_each_quantile_grows_with_the_mean(mean: int, more: int, cv: float) -> None:
    shorter = workload(response_tokens=mean, length_cv=cv).lengths_at(GRID)
    longer = workload(response_tokens=mean + more, length_cv=cv).lengths_at(GRID)
    assert (longer >= shorter).all()


def test_lengths_without_spread_are_all_the_mean() -> None:
    assert set(workload(length_cv=0.0).lengths_at(GRID)) == {1000}
    assert set(workload(max_response_tokens=1000).lengths_at(GRID)) == {1000}


def test_spread_is_the_stated_one_if_nothing_is_cut_off() -> None:
    lengths = workload(max_response_tokens=10**9, length_cv=0.6).lengths_at((np.arange(200_000) + 0.5) / 200_000)
    assert lengths.std() / lengths.mean() == pytest.approx(0.6, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": 0}, "--prompts 0 must be at least 1."),
        ({"samples": 0}, "--samples 0 must be at least 1."),
        ({"prompt_tokens": -1}, "--prompt-tokens -1 must"),
        ({"max_response_tokens": 999}, "less than the mean length"),
        ({"length_cv": -0.1}, "--length-cv"),
        ({"length_cv": float("nan")}, "--length-cv"),
        ({"train_batch": 5}, "does not divide the 32 sequences"),
        ({"prompts": 10**12}, "samples a step"),
        ({"max_response_tokens": 10**12}, "tokens a sequence"),
        ({"prompts": 10**4, "samples": 10**4}, "--prompts x --samples"),
    ],
)
def test_impossible_steps_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        workload(**changes)


def test_updates_are_the_sequences_over_the_train_batch() -> None:
    assert workload().updates == 1
    assert workload(train_batch=8).updates == 4
