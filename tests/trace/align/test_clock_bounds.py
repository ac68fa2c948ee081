"""Bounds of clock offsets: the true offsets are within them, and they are as tight as all pairs of events allow."""

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.surveys import collective, made_survey
from trainyard.events import ClockOffset
from trainyard.trace.align import clock_bounds
from trainyard.trace.align.alignment import align_clocks
from trainyard.trace.align.clock_bounds import Comparison, bound_offsets
from trainyard.trace.align.matching import meetings

MS = 10**6


@st.composite
def gloo_worlds(draw):
    """Ranks on clocks of their own; members of a collective end at different times, after the last arrival.

    Returns (surveys, offset of each rank's clock to the first one's, comparisons)."""
    count = draw(st.integers(2, 5))
    offsets = [0, *(draw(st.integers(-(10**12), 10**12)) for _ in range(count - 1))]
    met = {rank: [] for rank in range(count)}
    groups = draw(st.lists(st.sets(st.integers(0, count - 1), min_size=2), min_size=1, max_size=8))
    for number, members in enumerate(groups):
        base = number * 100_000
        arrivals = {rank: base + draw(st.integers(0, 30_000)) for rank in members}
        for rank in members:
            end = max(arrivals.values()) + draw(st.integers(1, 5_000))
            kind = collective(group=str(number), ranks=sorted(members), seq=0)
            met[rank].append((kind, arrivals[rank] - offsets[rank], end - offsets[rank]))
    surveys = [made_survey(rank, rows, on_device=False) for rank, rows in met.items()]
    comparisons = []
    for rank in draw(st.sets(st.integers(1, count - 1), max_size=2)):
        early, late = draw(st.integers(0, 500)), draw(st.integers(0, 500))
        offset = ClockOffset(
            reference=0, low_ns=offsets[rank] - early, high_ns=offsets[rank] + late, at_ns=-offsets[rank]
        )
        comparisons.append(Comparison(rank, 0, offset))
    return surveys, offsets, comparisons


def middles(surveys):
    """The middle of each rank's recording, ns by its clock."""
    return np.array([sum(survey.window) // 2 for survey in surveys], np.int64)


def shortest(surveys, count, comparisons):
    """Highest offset of each clock by the shortest paths over every pair of a start and an end (Floyd-Warshall)."""
    met = meetings(surveys)
    far = 2**61
    limit = [[0 if i == j else far for j in range(count)] for i in range(count)]
    for number in range(met.size):
        rows = range(met.first[number], met.first[number + 1])
        for a in rows:
            for b in rows:
                i, j = int(met.rank_index[a]), int(met.rank_index[b])
                limit[i][j] = min(limit[i][j], int(met.stop[a] - met.start[b]))
    for clock, reference, offset in comparisons:
        limit[reference][clock] = min(limit[reference][clock], offset.high_ns)
        limit[clock][reference] = min(limit[clock][reference], -offset.low_ns)
    for k in range(count):
        for i in range(count):
            for j in range(count):
                if limit[i][k] < far and limit[k][j] < far:
                    limit[i][j] = min(limit[i][j], limit[i][k] + limit[k][j])
    return limit


@given(gloo_worlds())
def test_bounds_contain_the_true_offsets_and_are_tight(world):
    surveys, offsets, comparisons = world
    count = len(surveys)
    previous, clock_bounds._MAX_DRIFT_NS_PER_S = clock_bounds._MAX_DRIFT_NS_PER_S, 0
    try:
        bounds = bound_offsets(meetings(surveys), np.arange(count), middles(surveys), comparisons)
    finally:
        clock_bounds._MAX_DRIFT_NS_PER_S = previous
    assert bounds.is_consistent
    assert all(low <= offset <= high for low, offset, high in zip(bounds.low, offsets, bounds.high))
    limit = shortest(surveys, count, comparisons)
    assert bounds.high.tolist() == limit[0]
    assert bounds.low.tolist() == [-limit[rank][0] for rank in range(count)]


@given(gloo_worlds())
def test_allowance_for_drift_never_excludes_the_true_offset(world):
    surveys, offsets, comparisons = world
    bounds = bound_offsets(meetings(surveys), np.arange(len(surveys)), middles(surveys), comparisons)
    assert bounds.is_consistent
    assert all(low <= offset <= high for low, offset, high in zip(bounds.low, offsets, bounds.high))


def late_world(lateness, offset, comparison=None, steps=20, step=50 * MS):
    """Two hosts that meet in one all-reduce of 1 ms per step; `lateness[n % len]`: by how much host b arrives later."""
    rows = {"a": [], "b": []}
    for number in range(steps):
        late = lateness[number % len(lateness)]
        arrived = {"a": number * step + max(0, -late), "b": number * step + max(0, late)}
        end = max(arrived.values()) + MS
        kind = collective(ranks=(0, 1), seq=number)
        rows["a"].append((kind, arrived["a"], end))
        rows["b"].append((kind, arrived["b"] - offset, end - offset))
    surveys = [made_survey(rank, rows[host], host=host, world=2, on_device=False) for rank, host in enumerate("ab")]
    if comparison:
        surveys[1] = surveys[1]._replace(facts=msgspec.structs.replace(surveys[1].facts, clock_offset=comparison))
    return surveys


def test_hosts_that_are_late_in_turn_are_aligned():
    agreed = align_clocks(late_world([10 * MS, 10 * MS, -8 * MS], 1000 * 10**9))
    assert agreed.aligned == "bounds"
    assert agreed.uncertainty_ns < 1.2 * MS
    assert abs(agreed.clocks[1].offset - 1000 * 10**9) <= agreed.uncertainty_ns


def test_a_host_that_is_always_late_needs_a_comparison():
    offset = 1000 * 10**9
    assert align_clocks(late_world([10 * MS], offset)).aligned == "no"
    compared = ClockOffset(reference=0, low_ns=offset - 100_000, high_ns=offset + 150_000, at_ns=-offset)
    agreed = align_clocks(late_world([10 * MS], offset, compared))
    assert agreed.aligned == "bounds"
    assert abs(agreed.clocks[1].offset - offset) <= agreed.uncertainty_ns < 0.3 * MS


def test_contradicting_evidence_is_not_used():
    offset = 1000 * 10**9
    wrong = ClockOffset(reference=0, low_ns=offset + 50 * MS, high_ns=offset + 51 * MS, at_ns=-offset)
    assert align_clocks(late_world([10 * MS, -8 * MS], offset, wrong)).aligned == "no"


def test_absurd_timestamps_are_refused():
    surveys = late_world([10 * MS, -8 * MS], 2**62)
    assert align_clocks(surveys).aligned == "no"
