"""Idle time at the same places of each step is the program's; elsewhere, a disturbance's."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.booked_maker import STEP, US, Did, Gap, Span, a_rank
from trainyard.detect.regularity import atypical_fraction, regular_fraction

KERNELS = 8


def steps_with_gaps(places_by_step):
    """A rank whose step i idles for 50 µs before the kernels with these numbers."""
    works, gaps, following = [], [], []
    for step, places in enumerate(places_by_step):
        for number in range(KERNELS):
            start = step * STEP + number * 1_000 * US
            works.append(Did(f"k{number % 3}", start, start + 900 * US, "compute/matmul"))
            if number in places:
                gaps.append(Gap(start - 50 * US, start))
                following.append(len(works) - 1)
    rank = a_rank(works, gaps, steps=len(places_by_step))
    return replace(rank, idle=replace(rank.idle, next=np.array(following, np.int32)))


@pytest.mark.parametrize(
    ("places", "fraction"),
    [
        ([(2, 5)] * 4, 1.0),
        ([(1,), (2,), (3,), (4,)], 0.0),
        ([(2, 5), (2, 6), (2, 7), (2, 4)], 0.5),
        ([(2,), (2,), (), (2,)], 4 / 3),  # the median step has it: more than the total would be capped by callers
    ],
)
def test_time_that_recurs_at_its_place_is_regular(places, fraction):
    rank = steps_with_gaps(places)
    rows = np.arange(len(rank.idle.start))
    assert regular_fraction(rank, rows) == pytest.approx(fraction)


def test_places_need_three_steps_and_a_device():
    assert regular_fraction(steps_with_gaps([(2,)] * 2), np.arange(2)) is None
    assert regular_fraction(a_rank(cpu=True), np.empty(0, np.int64)) is None


def test_stops_in_calls_of_unusual_length_are_atypical():
    host = [Span("aten::mm", at * 100 * US, (at * 100 + 10) * US) for at in range(9)]
    host.append(Span("aten::mm", 900 * US, 1_400 * US))
    gaps = [Gap(0, 10 * US, during=0), Gap(900 * US, 990 * US, during=9)]
    rank = a_rank([Did("gemm", STEP - US, STEP, "compute/matmul")], gaps, host)
    assert atypical_fraction(rank, np.arange(2)) == pytest.approx(0.9)
    assert atypical_fraction(rank, np.arange(1)) == 0
