"""Limits of errors: the stated rate of false alarms, rare large errors, degrees of freedom."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.numpy_training import sketch
from trainyard.numerics.compare.comparison_rule import MARGIN, ComparisonRule
from trainyard.numerics.compare.noise_levels import degrees_of_freedom, noise_levels, relative_errors
from trainyard.numerics.compare.ratio_quantile import ratio_quantile
from trainyard.numerics.tensor_record import BUCKETS

F64 = npt.NDArray[np.float64]
RUNS, TENSORS = 5, 400


def null_sketches(random: np.random.Generator, runs: int, tensors: int) -> F64:
    """Sketches [runs, tensors, 64] of rounding errors of the same distribution in all runs: between 1 and 64 directions
    with unequal variances, and sizes from 1e-7 to 1e-2."""
    deviations = np.zeros((runs, tensors, BUCKETS))
    directions = random.choice([1, 2, 4, 8, 64], tensors)
    for count in np.unique(directions):
        chosen = directions == count
        shape = (int(chosen.sum()), BUCKETS, int(count))
        basis = random.standard_normal(shape) * random.uniform(0.2, 1, (shape[0], 1, shape[2]))
        draws = random.standard_normal((runs, shape[0], shape[2]))
        deviations[:, chosen] = np.einsum("tsd,rtd->rts", basis, draws)
    return deviations * 10 ** random.uniform(-7, -2, (tensors, 1))


def exceeds(rule: ComparisonRule, sketches: F64) -> npt.NDArray[np.bool_]:
    """Whether the last run exceeds its limit against the others, per tensor, if the reference has norm 1."""
    errors = np.linalg.norm(sketches, axis=-1)
    tensors = errors.shape[1]
    levels = noise_levels(
        rule,
        errors[:-1],
        degrees_of_freedom(sketches[:-1]),
        roundoff=np.full(tensors, 1e-12),
        scale=np.ones(tensors),
        groups=np.zeros(tensors, np.int64),
    )
    return errors[-1] > levels.limit


def test_false_alarms_occur_at_most_at_the_stated_rate() -> None:
    """Over whole comparisons, with the margin for kernels left out."""
    rule = ComparisonRule(false_alarm=0.05, margin=1.0, replicas=RUNS - 1, tensors=TENSORS)
    random = np.random.default_rng(3)
    alarms = [exceeds(rule, null_sketches(random, RUNS + 1, TENSORS)).any() for _ in range(300)]
    assert 0.005 < np.mean(alarms) < 0.075  # 0.05 and two standard errors


def test_margin_leaves_no_false_alarm_to_larger_errors() -> None:
    rule = ComparisonRule(replicas=RUNS - 1, tensors=TENSORS)
    random = np.random.default_rng(4)
    for _ in range(50):
        sketches = null_sketches(random, RUNS + 1, TENSORS)
        sketches[-1] *= 0.75 * MARGIN
        assert not exceeds(rule, sketches).any()


@pytest.mark.parametrize("flips", [0.0005, 0.003])
def test_rare_large_errors_raise_no_alarm(flips: float) -> None:
    """Elements of a gradient that change their side of a ReLU: an error a thousand times as large in few tensors."""
    rule = ComparisonRule(replicas=RUNS - 1, tensors=TENSORS)
    random = np.random.default_rng(5)
    alarms = 0
    for _ in range(100):
        sketches = random.standard_normal((RUNS + 1, TENSORS, BUCKETS)) * 1e-7
        flipped = random.random((RUNS + 1, TENSORS)) < flips
        sketches[..., 0] += flipped * 1e-3 * random.uniform(0.3, 1, flipped.shape)
        alarms += bool(exceeds(rule, sketches).any())
    # A flip of B is unknown if no run of A has one anywhere: (1 - flips)^(runs * tensors) of the records.
    unknown = (1 - flips) ** (RUNS * TENSORS)
    assert alarms <= 100 * unknown + 3 * np.sqrt(100 * unknown) + 1


@pytest.mark.parametrize("size", [5.0, 30.0, 1000.0])
def test_deviations_beyond_the_margin_are_detected(size: float) -> None:
    """Tensors whose errors have many degrees of freedom, from about 4 times the noise on."""
    rule = ComparisonRule(replicas=RUNS - 1, tensors=TENSORS)
    sketches = np.random.default_rng(6).standard_normal((RUNS + 1, TENSORS, BUCKETS)) * 1e-7
    sketches[-1, 17] *= size
    assert np.flatnonzero(exceeds(rule, sketches)).tolist() == [17]


@pytest.mark.parametrize("degrees", [1, 3, 64])
@pytest.mark.parametrize("errors", [2, 5])
def test_ratio_quantile_is_exceeded_with_its_probability(degrees: int, errors: int) -> None:
    draws = np.random.default_rng(7).chisquare(degrees, (200_000, errors + 1)) ** 0.5
    ratios = draws[:, 0] / draws[:, 1:].max(axis=1)
    for probability in (0.1, 0.01):
        exceeded = (ratios > ratio_quantile(degrees, errors, probability)).mean()
        assert exceeded == pytest.approx(probability, rel=0.1)


@given(st.integers(1, 64), st.integers(1, 8), st.floats(1e-9, 0.4))
def test_ratio_quantile_falls_with_degrees_errors_and_probability(degrees: int, errors: int, p: float) -> None:
    quantile = ratio_quantile(degrees, errors, p)
    assert quantile >= 1
    assert ratio_quantile(degrees + 1, errors, p) <= quantile * (1 + 1e-6)
    assert ratio_quantile(degrees, errors + 1, p) <= quantile * (1 + 1e-6)
    assert ratio_quantile(degrees, errors, p / 2) >= quantile * (1 - 1e-6)


def test_degrees_of_freedom_of_a_scalar_are_1_and_of_large_tensors_many() -> None:
    random = np.random.default_rng(8)
    scalar = np.zeros((5, 1, BUCKETS))
    scalar[..., 3] = random.standard_normal((5, 1))
    assert degrees_of_freedom(scalar).tolist() == [1]
    assert np.median(degrees_of_freedom(random.standard_normal((5, 50, BUCKETS)))) >= 22


@given(
    st.integers(1, 3000),
    st.sampled_from(["sign", "element", "permutation", "scale"]),
    st.integers(0, 2**32 - 1),
)
def test_sketch_estimates_the_error_of_any_kind(elements: int, kind: str, seed: int) -> None:
    """Within 5 standard deviations; exactly up to 64 elements."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(elements)
    other = values.copy()
    if kind == "sign":
        other = -other
    elif kind == "element":
        other[random.integers(elements)] += 3.0
    elif kind == "permutation":
        other = random.permutation(other)
    else:
        other *= 1.5
    exact = np.linalg.norm(other - values)
    estimate = relative_errors(sketch(other)[None], sketch(values)[None], np.ones(1))[0]
    assert estimate == pytest.approx(exact, rel=0.45 if elements > BUCKETS else 1e-9, abs=1e-12)
