"""Findings name their largest intervals, and one that is almost all of the cost."""

import numpy as np
import pytest

from tests.booked_maker import STEP, US, Did, Gap, Span, a_rank
from tests.detect.test_detect import WHOLE, found_by
from trainyard.detect.largest_intervals import largest_idle, largest_waits, largest_work
from trainyard.events import CALL


def freed(*lengths_us, steps=1, number=0):
    """A rank that idles in one cudaFree of each length, 1,000 µs apart."""
    at = [1_000 * US * index for index in range(len(lengths_us))]
    host = [Span("cudaFree", start, start + us * US, CALL, "launch_gap/alloc") for start, us in zip(at, lengths_us)]
    gaps = [
        Gap(start, start + us * US, "launch_gap/alloc", during=row)
        for row, (start, us) in enumerate(zip(at, lengths_us))
    ]
    return a_rank([Did("gemm", STEP - US, STEP, "compute/matmul")], gaps, host, steps=steps, number=number)


@pytest.mark.parametrize(
    ("lengths", "single"), [((900, 50, 50), True), ((899, 51, 50), False), ((300, 300, 300), False)]
)
def test_an_interval_of_nine_tenths_is_named_in_the_sentence(lengths, single):
    (finding,) = found_by("allocator_churn", freed(*lengths))
    assert ("one cudaFree of" in finding.summary) is single
    assert finding.evidence.endswith(f"largest: cudaFree {lengths[0]:.1f} µs")


def test_each_rank_with_cost_must_have_a_single_interval():
    single, several = freed(900), freed(500, 500, number=1)
    rows = [np.arange(len(rank.idle.start)) for rank in (single, several)]
    assert largest_idle([single], rows[:1]).is_single
    assert not largest_idle([single, several], rows).is_single
    assert largest_idle([single, freed(800, number=1)], [rows[0], np.arange(1)]).ranks == 2


def test_adjacent_idle_rows_of_one_key_are_one_interval():
    gaps = [Gap(0, 10 * US, "data_wait"), Gap(10 * US, 30 * US, "data_wait"), Gap(40 * US, 45 * US, "data_wait")]
    largest = largest_idle([a_rank([], gaps)], [np.arange(3)])
    assert [ns for _, ns in largest.intervals] == [30 * US, 5 * US]


def test_steps_with_a_relevant_part_are_counted():
    works = [Did("nccl", step * STEP, step * STEP + ns, "comm/all_reduce") for step, ns in enumerate((100, 90, 5, 100))]
    largest = largest_work([a_rank(works, steps=4)], [np.arange(4)])
    assert (largest.steps_with, largest.steps, largest.is_single) == (3, 4, False)
    waits = [(step * STEP, ns, "all_reduce", 1) for step, ns in enumerate((1_000, 10, 10, 10))]
    waiting = largest_waits([a_rank(steps=4, waits=waits)])
    assert (waiting.steps_with, waiting.is_single, waiting.intervals[0]) == (1, True, ("wait in all-reduce", 1_000))


def test_no_intervals_have_no_summary():
    assert largest_idle([], []) is None
    assert largest_work([a_rank([])], [np.empty(0, np.int64)]) is None
    assert found_by("allocator_churn", freed(), mean=WHOLE) == []
