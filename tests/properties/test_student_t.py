"""Student's t distribution matches scipy's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.stats import student_t

scipy = pytest.importorskip("scipy.stats")

freedom = st.floats(1, 5_000)


@given(st.floats(-60, 60), freedom)
def test_two_sided(t, df):
    assert student_t.two_sided_p(t, df) == pytest.approx(2 * scipy.t.sf(abs(t), df), rel=1e-8, abs=1e-14)


@given(st.floats(1e-6, 1 - 1e-6), freedom)
def test_quantile(p, df):
    assert student_t.quantile(p, df) == pytest.approx(scipy.t.ppf(p, df), rel=1e-7, abs=1e-9)


@given(st.floats(0.001, 0.999), freedom)
def test_quantile_and_two_sided_are_inverse(p, df):
    assert student_t.two_sided_p(student_t.quantile(p, df), df) == pytest.approx(2 * min(p, 1 - p), abs=1e-9)


def test_extreme_values():
    assert student_t.two_sided_p(float("inf"), 3) == 0
    assert student_t.quantile(0.5, 3) == 0
