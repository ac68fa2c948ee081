"""Booking against an oracle that walks every nanosecond."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainyard.trace.booking.intervals import Intervals, book

KEYS, KINDS = 6, 3


@st.composite
def timelines(draw):
    rows = draw(
        st.lists(st.tuples(st.integers(-6, 40), st.integers(0, 15), st.integers(0, KEYS - 1)), min_size=0, max_size=14)
    )
    bounds = sorted(draw(st.sets(st.integers(0, 40), min_size=2, max_size=5)))
    start = np.array([row[0] for row in rows], np.int64)
    length = np.array([row[1] for row in rows], np.int64)
    key = np.array([row[2] for row in rows], np.int32)
    # Two keys a kind: the precedence between kinds and the order within one are both exercised.
    return Intervals(start, start + length, (key // 2).astype(np.int8), key), np.array(bounds, np.int64)


def walk(intervals, bounds):
    """The rules of docs/explanation/ledger.md, one nanosecond at a time."""
    parts = len(bounds) - 1
    owned = np.zeros((parts, KEYS + 1), np.int64)
    live = np.zeros((parts, KEYS), np.int64)
    unions = np.zeros((parts, KINDS), np.int64)
    by_interval = np.zeros(len(intervals.start), np.int64)
    for now in range(bounds[0], bounds[-1]):
        part = np.searchsorted(bounds, now, "right") - 1
        open_ = [
            (kind, max(start, bounds[0]), key, row)
            for row, (start, stop, kind, key) in enumerate(zip(*intervals))
            if start <= now < stop
        ]
        for key in {item[2] for item in open_}:
            live[part, key] += 1
        for kind in {item[0] for item in open_}:
            unions[part, kind] += 1
        if open_:
            _, _, key, row = min(open_)
            owned[part, key] += 1
            by_interval[row] += 1
        else:
            owned[part, KEYS] += 1
    return owned, live, unions, by_interval


@given(timelines())
def test_booking_matches_a_walk_over_every_nanosecond(timeline):
    intervals, bounds = timeline
    booking = book(intervals, bounds, KEYS, KINDS)
    owned, live, unions, by_interval = walk(intervals, bounds)
    np.testing.assert_array_equal(booking.owned, owned)
    np.testing.assert_array_equal(booking.live, live)
    np.testing.assert_array_equal(booking.unions, unions)
    np.testing.assert_array_equal(booking.by_interval, by_interval)


@given(timelines())
def test_booked_parts_sum_to_their_length(timeline):
    intervals, bounds = timeline
    booking = book(intervals, bounds, KEYS, KINDS)
    np.testing.assert_array_equal(booking.owned.sum(axis=1), np.diff(bounds))
    whole = book(intervals, bounds[[0, -1]], KEYS, KINDS)
    np.testing.assert_array_equal(booking.owned.sum(axis=0), whole.owned[0])
    np.testing.assert_array_equal(booking.live.sum(axis=0), whole.live[0])
    np.testing.assert_array_equal(booking.by_interval, whole.by_interval)


def test_without_intervals_all_time_is_uncovered():
    none = np.empty(0, np.int64)
    booking = book(Intervals(none, none, none.astype(np.int8), none.astype(np.int32)), np.array([3, 10]), 1, 1)
    assert booking.owned.tolist() == [[0, 7]]
