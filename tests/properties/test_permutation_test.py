"""Permutation tests: p-values against enumeration of all labels, and their invariances."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.numerics.convergence.effect_size import sizes
from trainyard.numerics.convergence.permutation_test import adjusted, least_p

counts = st.lists(st.tuples(st.integers(1, 2), st.integers(1, 2)), min_size=1, max_size=4)


@st.composite
def groups(draw):
    shape, segments = draw(counts), draw(st.integers(1, 4))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32)))
    shift = draw(st.sampled_from([0.0, 1.0, 5.0]))
    groups = []
    for heads, bases in shape:
        runs = numbers.standard_normal((heads + bases, segments))
        groups.append((runs[:heads] + shift * numbers.random(segments), runs[heads:]))
    return groups


def by_brute_force(groups, floor):
    """Westfall and Young's adjusted p-values, by definition."""
    labels = []
    for heads, bases in groups:
        runs = np.concatenate([heads, bases])
        labels.append(
            [(runs[list(c)], np.delete(runs, list(c), axis=0)) for c in combinations(range(len(runs)), len(heads))]
        )
    spread = sum(((np.concatenate(g) - np.concatenate(g).mean(0)) ** 2).sum(0) for g in groups) + floor**2

    def statistic(chosen):
        return np.abs(sum(heads.mean(0) - bases.mean(0) for heads, bases in chosen)) / np.sqrt(spread)

    seen = statistic(groups)
    every = np.array([statistic(chosen) for chosen in product(*labels)])
    order, result, so_far = np.argsort(-seen, kind="stable"), np.empty(len(seen)), 0.0
    for rank, segment in enumerate(order):
        largest = every[:, order[rank:]].max(axis=1)
        so_far = result[segment] = max(so_far, np.mean(largest >= seen[segment] * (1 - 1e-9)))
    return result


@given(groups(), st.sampled_from([0.01, 1.0]))
def test_p_values_match_enumeration_of_all_labels(groups, floor):
    assert adjusted(groups, floor) == pytest.approx(by_brute_force(groups, floor))


@given(groups())
def test_p_values_are_at_least_the_minimum_of_the_design(groups):
    least = least_p([(len(heads), len(bases)) for heads, bases in groups])
    assert adjusted(groups, 0.1).min() >= least - 1e-12


@given(groups())
def test_swapping_sides_negates_the_effect(groups):
    swapped = [(bases, heads) for heads, bases in groups]
    assert adjusted(swapped, 0.1) == pytest.approx(adjusted(groups, 0.1))
    ours, theirs = sizes(groups, 0.05), sizes(swapped, 0.05)
    assert theirs.mean == pytest.approx(-ours.mean)
    assert theirs.low == pytest.approx(-ours.high)


@given(groups(), st.floats(0.01, 100), st.floats(-5, 5))
def test_p_values_are_invariant_to_scale_and_offset(groups, scale, offset):
    """The level of each seed and a common scale, including the floor's, cancel."""
    other = [(scale * heads + offset * k, scale * bases + offset * k) for k, (heads, bases) in enumerate(groups)]
    assert adjusted(other, scale * 0.1) == pytest.approx(adjusted(groups, 0.1))


@given(groups())
def test_interval_matches_a_linear_model(groups):
    """Equals least squares on seed and side."""
    rows, values = [], []
    for seed, (heads, bases) in enumerate(groups):
        for side, runs in ((1.0, heads), (0.0, bases)):
            for run in runs:
                rows.append([side, *(float(seed == other) for other in range(len(groups)))])
                values.append(run[0])
    design, values = np.array(rows), np.array(values)
    effect = sizes(groups, 0.05)
    fitted = np.linalg.lstsq(design, values, rcond=None)[0]
    assert effect.mean[0] == pytest.approx(fitted[0])
    freedom = len(values) - design.shape[1]
    assert effect.freedom == freedom
    if freedom:
        variance = ((values - design @ fitted) ** 2).sum() / freedom * np.linalg.inv(design.T @ design)[0, 0]
        assert effect.error[0] == pytest.approx(np.sqrt(variance))


def test_sampled_permutations_give_valid_p_values():
    numbers = np.random.default_rng(1)
    same = [(numbers.standard_normal((1, 2)), numbers.standard_normal((1, 2))) for _ in range(20)]
    moved = [(heads + 10, bases) for heads, bases in same]
    assert adjusted(moved, 0.1).max() < 1e-3
    assert adjusted(same, 0.1).min() >= 1 / (1 << 15)


def test_minimum_p_values_of_designs():
    assert least_p([(1, 1)] * 5) == 2 / 32
    assert least_p([(1, 1)] * 6) == 2 / 64
    assert least_p([(1, 2)] * 3) == 1 / 27
