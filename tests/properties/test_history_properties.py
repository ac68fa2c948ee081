"""Change points: invariants for any series; the statistics match scipy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refused import refused
from trainyard.compare.history.detect_changes import detect
from trainyard.compare.history.online_detection import OnlineDetector
from trainyard.compare.history.series_changes import DetectedChanges
from trainyard.compare.history.statistics.autocorrelation import estimate_variance_inflation
from trainyard.compare.history.statistics.change_points import find_change_points
from trainyard.compare.history.statistics.critical_values import MIN_POINTS, look_up_critical
from trainyard.compare.history.statistics.levels import estimate_level, estimate_shift
from trainyard.compare.history.statistics.rank_statistics import SHORTEST_SIDE, centre_ranks, compute_split_statistics
from trainyard.compare.history.statistics.seeded_intervals import list_lengths, list_starts
from trainyard.compare.history.statistics.split_scan import SplitScan
from trainyard.errors import BadInput, NotEnoughEvidence

rows = st.lists(st.integers(-20, 20), min_size=2 * SHORTEST_SIDE, max_size=40)
seeds = st.integers(0, 2**32 - 1)


def noisy(seed, n=120, steps=()):
    """Normal noise with steps `(index, size)`."""
    values = np.random.default_rng(seed).standard_normal(n)
    for index, size in steps:
        values[index:] += size
    return values


def places(seen: DetectedChanges):
    return [(change.kind, change.at, change.until, change.low, change.high) for change in seen.changes]


@given(rows)
def test_ranks_match_scipy(values):
    stats = pytest.importorskip("scipy.stats")
    ours = centre_ranks(np.array([values], float))[0]
    assert np.allclose(ours, stats.rankdata(values) - (len(values) + 1) / 2)


@given(rows, st.data())
def test_split_statistic_matches_scipy(values, data):
    stats = pytest.importorskip("scipy.stats")
    at = data.draw(st.integers(SHORTEST_SIDE, len(values) - SHORTEST_SIDE))
    ours = compute_split_statistics(np.array([values], float))[0, at - 1]
    if len(set(values)) == 1:
        assert ours == 0
        return
    theirs = stats.mannwhitneyu(values[at:], values[:at], use_continuity=False, method="asymptotic")
    assert 2 * stats.norm.sf(abs(ours)) == pytest.approx(theirs.pvalue, rel=1e-9)
    assert np.sign(round(ours, 9)) == np.sign(theirs.statistic - at * (len(values) - at) / 2)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.lists(st.floats(-100, 100), min_size=1, max_size=30))
def test_levels_and_shifts_lie_in_their_intervals(before, after):
    before, after = np.array(before), np.array(after)
    assert estimate_level(before).low <= estimate_level(before).value <= estimate_level(before).high
    shifted = estimate_shift(before, after)
    assert shifted.low <= shifted.value <= shifted.high
    assert shifted.value == pytest.approx(np.median(np.subtract.outer(after, before)), abs=1e-9)
    assert estimate_shift(before, after + 5).value == pytest.approx(shifted.value + 5, abs=1e-9)
    assert estimate_shift(after, before).value == pytest.approx(-shifted.value, abs=1e-9)


@given(seeds, st.floats(0.5, 50), st.floats(-1e3, 1e3))
@settings(max_examples=25)
def test_changes_are_invariant_to_scale_and_offset(seed, scale, offset):
    values = noisy(seed, steps=((60, 4.0),))
    assert places(detect(values)) == places(detect(values * scale + offset))


@given(seeds)
@settings(max_examples=25)
def test_negated_series_has_the_same_changes(seed):
    values = noisy(seed, steps=((40, 3.0), (80, -5.0)))
    up, down = detect(values), detect(-values)
    assert places(up) == places(down)
    shifts = [change.shift.value for change in up.changes]
    assert shifts == pytest.approx([-change.shift.value for change in down.changes])


@given(seeds)
@settings(max_examples=25)
def test_changes_depend_on_ranks_only(seed):
    """Any increasing function of the values leaves the changes, and so the error rate, unchanged."""
    changes = []
    values = noisy(seed, steps=((60, 1.5),))
    for transformed in (values, np.exp(values), np.sinh(3 * values)):
        scan = SplitScan()
        scan.extend(transformed)
        wide = float(estimate_variance_inflation(transformed[None])[0])
        changes.append(find_change_points(transformed, scan.splits(), wide, look_up_critical(transformed.size)))
    assert changes[0] == changes[1] == changes[2]


@given(seeds)
@settings(max_examples=25)
def test_reversed_series_mirrors_a_clear_step(seed):
    values = noisy(seed, steps=((60, 8.0),))
    forth = [change.at for change in detect(values).lasting]
    assert forth == [values.size - change.at for change in reversed(detect(values[::-1]).lasting)]
    assert 60 in forth


@given(seeds, st.integers(1, 30))
@settings(max_examples=20)
def test_incremental_scan_equals_full_scan(seed, chunk):
    values = noisy(seed, n=150, steps=((90, 3.0),))
    grown = SplitScan()
    for at in range(0, values.size, chunk):
        grown.extend(values[at : at + chunk])
    whole = SplitScan()
    whole.extend(values)

    def sorted_rows(scan):
        return sorted(zip(*(column.tolist() for column in scan.splits())))

    # The grown scan has an interval of the grid that ends at the last point twice, which does not matter.
    assert set(sorted_rows(grown)) == set(sorted_rows(whole))


@given(st.integers(MIN_POINTS, 400), st.integers(0, 400))
def test_grid_of_a_longer_series_contains_the_shorter_grid(n, more):
    for length in list_lengths(n):
        short, long = list_starts(length, 0, n), list_starts(length, 0, n + more)
        later = list_starts(length, n, n + more)
        assert set(short) <= set(long)
        assert set(short) | set(later) == set(long)
        assert not set(short) & set(later)


@given(seeds)
@settings(max_examples=10)
def test_online_detector_reports_a_change_once(seed):
    values = noisy(seed, n=110, steps=((80, 6.0),))
    watch = OnlineDetector(values[:75])
    changes = [change for value in values[75:110] for change in watch.add([value])]
    up = [change for change in changes if change.shift.value > 3]
    assert len(up) == 1
    assert up[0].low - 3 <= 80 <= max(up[0].high, up[0].until) + 3


@given(st.integers(MIN_POINTS, 300), st.floats(-1e9, 1e9))
def test_constant_series_has_no_changes(n, value):
    assert not detect([value] * n).changes


def test_step_without_noise_is_located_exactly():
    [change] = detect([0.0] * 40 + [1.0] * 40).changes
    assert (change.kind, change.at, change.low, change.high) == ("step", 40, 40, 40)
    assert change.share is None
    assert (change.shift.value, change.shift.low, change.shift.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_are_refused_with_their_index(bad):
    with refused(BadInput, 7, bad):
        detect([1.0] * 7 + [bad] + [1.0] * 20)
    watch = OnlineDetector([1.0] * 20)
    with refused(BadInput, 0, bad):
        watch.add([bad])
    assert watch.add([1.0] * 20) == ()


@given(st.integers(0, MIN_POINTS - 1))
def test_too_few_points_are_refused(n):
    with refused(NotEnoughEvidence, n, MIN_POINTS):
        detect(range(n))


@given(st.integers(MIN_POINTS, 10**6))
def test_critical_value_grows_with_points(n):
    assert look_up_critical(n) <= look_up_critical(n + 1)


@given(seeds)
@settings(max_examples=25)
def test_inflation_reflects_autocorrelation_but_not_steps(seed):
    rng = np.random.default_rng(seed)
    white = rng.standard_normal(400)
    slow = np.convolve(rng.standard_normal(420), 0.8 ** np.arange(20), "valid")[:400]
    wide, narrow = estimate_variance_inflation(slow[None])[0], estimate_variance_inflation(white[None])[0]
    assert 1 <= narrow < 2 < wide
    stepped = white + 10 * (np.arange(400) >= 200)
    assert estimate_variance_inflation(stepped[None])[0] < 2
