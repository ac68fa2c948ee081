"""Spikes of curves: planted ones are found, and curves without one raise no alarm at the stated rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.numerics.triage.find_spikes import LEAST_VALUES, find_spikes

STEPS = 500


def decaying(draw: np.random.Generator) -> np.ndarray:
    noise = draw.uniform(0.005, 0.1)
    return np.exp(noise * draw.standard_normal(STEPS)) * (2 + 8 * np.exp(-np.arange(STEPS) / draw.uniform(5, 200)))


def random_walk(draw: np.random.Generator) -> np.ndarray:
    return np.exp(np.cumsum(draw.uniform(0.005, 0.1) * draw.standard_normal(STEPS)))


def laplace(draw: np.random.Generator) -> np.ndarray:
    return 3 * np.exp(draw.laplace(scale=draw.uniform(0.005, 0.1), size=STEPS))


def two_levels(draw: np.random.Generator) -> np.ndarray:
    return np.where(draw.random(STEPS) < 0.3, 4.0, 2.5) * np.exp(0.02 * draw.standard_normal(STEPS))


@pytest.mark.parametrize("curve", [decaying, random_walk, laplace, two_levels], ids=lambda curve: curve.__name__)
def test_false_alarms_are_rare(curve) -> None:
    draw = np.random.default_rng(0)
    alarms = sum(len(find_spikes("loss", range(STEPS), curve(draw).tolist())) for _ in range(60))
    assert alarms <= 60 * STEPS / 10_000


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(40, STEPS - 10), st.integers(1, 9), st.floats(1.2, 100))
def test_planted_spike_is_found_with_its_steps(seed: int, first: int, length: int, ratio: float) -> None:
    draw = np.random.default_rng(seed)
    losses = np.exp(0.01 * draw.standard_normal(STEPS)) * 3
    losses[first : first + length] *= ratio
    (spike,) = find_spikes("loss", range(STEPS), losses.tolist())
    assert (spike.step, spike.last_step) == (first, first + length - 1)
    assert spike.value == losses[first : first + length].max()
    assert spike.ratio == pytest.approx(ratio, rel=0.1)


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=True)), max_size=60))
def test_any_values_are_accepted(values: list[float | None]) -> None:
    spikes = find_spikes("loss", range(len(values)), values)
    assert all(LEAST_VALUES <= spike.step <= spike.last_step < len(values) for spike in spikes)


def test_scaled_curve_has_the_same_spikes() -> None:
    losses = [3 + 0.1 * (step % 7) for step in range(60)]
    losses[45] = 9.0
    (small,), (large,) = (find_spikes("loss", range(60), [loss * scale for loss in losses]) for scale in (1e-6, 1e6))
    assert small.step == large.step == 45
    assert small.score == pytest.approx(large.score)
