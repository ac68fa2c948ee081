"""A rank is slower if its own work is longer in each step; else it is only behind."""

import pytest
from msgspec.structs import replace

from tests.booked_maker import STEP, US, Did, a_rank
from trainyard.detect.communication.own_time import doubt_of_kernels, explained_fraction
from trainyard.events import StepMark


def rank(number, *lengths_us):
    """One step for each length: five kernels of that length."""
    works = [
        Did("gemm", step * STEP + index * us * US, step * STEP + (index + 1) * us * US, "compute/matmul")
        for step, us in enumerate(lengths_us)
        for index in range(5)
    ]
    return a_rank(works, number=number, steps=len(lengths_us))


def test_longer_kernels_in_each_step_explain_the_wait():
    ranks = [rank(0, 100, 100, 100, 100, 100), rank(1, 150, 150, 150, 150, 150)]
    assert doubt_of_kernels(ranks, 1, 250 * US) == 2 / 2**5
    assert doubt_of_kernels(ranks, 1, 510 * US) == 1  # not even half of it
    assert doubt_of_kernels(ranks, 0, 250 * US) == 1
    assert explained_fraction(ranks, 1, 250 * US) == pytest.approx(0.75, abs=0.15)
    assert explained_fraction(ranks, 0, 250 * US) == 0


def test_kernels_that_are_longer_in_some_steps_only_are_doubtful():
    ranks = [rank(0, 100, 190, 100, 100, 100), rank(1, 150, 150, 150, 150, 150)]
    assert doubt_of_kernels(ranks, 1, 100 * US) == 1


def test_a_single_step_is_compared_by_quarters():
    short, long = (
        a_rank([Did("gemm", at * 200 * US, (at * 200 + us) * US, "compute/matmul") for at in range(40)], number=number)
        for number, us in ((0, 100), (1, 150))
    )
    assert doubt_of_kernels([short, long], 1, 1_000 * US) == 2 / 2**4


def test_a_rank_without_others_or_work_is_unknown():
    assert explained_fraction([rank(1, 100)], 1, US) is None
    assert explained_fraction([rank(0, 100)], 1, US) is None
    assert doubt_of_kernels([rank(0, 100), a_rank(number=1)], 1, US) == 1


def cpu_rank(number, wait_us):
    """Five marked steps on a CPU, in which rank `number` waits for rank 1; the wait has no span on the host."""
    waits = [(step * STEP, wait_us * US, "all_reduce@world", 1) for step in range(5) if wait_us]
    booked = a_rank([Did("aten::mm", 0, US, "compute/matmul")], number=number, steps=5, cpu=True, waits=waits)
    marks = tuple(StepMark(label=part.label, start=part.start, stop=part.stop) for part in booked.parts)
    return replace(booked, events=replace(booked.events, marks=marks))


def test_waits_without_a_span_are_not_own_time_on_a_cpu():
    wait_ns = STEP * 4 // 5
    waiting = [cpu_rank(0, wait_ns // US), cpu_rank(1, 0)]
    assert (explained_fraction(waiting, 1, wait_ns) or 0) > 0.5
    assert explained_fraction([cpu_rank(0, 0), cpu_rank(1, 0)], 1, wait_ns) == 0
