"""Doubts multiply, and a cost that does not recur is doubted more."""

from hypothesis import given
from hypothesis import strategies as st

from trainyard.detect.confidence import confidence, doubt_of_recurrence

PROBABILITIES = st.lists(st.floats(0, 1), max_size=5)


@given(PROBABILITIES, st.floats(0, 1))
def test_another_doubt_never_raises_the_confidence(doubts, another):
    assert 0 <= confidence(*doubts, another) <= confidence(*doubts) <= 1
    assert confidence(*doubts, 1.0) == 0


@given(st.integers(0, 20), st.integers(2, 20), st.booleans())
def test_a_cost_in_fewer_steps_is_doubted_more(steps_with, steps, is_single):
    rare, often = (doubt_of_recurrence(count, steps, is_single) for count in sorted((steps_with % (steps + 1), steps)))
    assert 0 <= often <= rare <= 1
    assert doubt_of_recurrence(steps, steps, False) == 0 < doubt_of_recurrence(1, steps, True)
