"""The profiler's cost falls on accounts by their number of operations, not by their time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.ledger import Account, Entry, Ledger
from trainyard.predict.calibrate.profiler_cost import seconds_without_profiler

MATMUL, SMALL, PYTHON = "compute/matmul", "compute/elementwise", "launch_gap/python"


def ledger(*entries: tuple[str, int, int]) -> Ledger:
    """(account, milliseconds, operations) of each entry."""
    return Ledger(
        wall_ns=sum(ms for _, ms, _ in entries) * 10**6,
        entries=tuple(
            Entry(account=Account.parse(account), ns=ms * 10**6, count=count) for account, ms, count in entries
        ),
    )


def test_many_small_operations_lose_most_of_the_cost() -> None:
    # 1,000 operations of 8 microseconds each cost 8 ms.
    profiled = ledger((MATMUL, 100, 100), (SMALL, 20, 900))
    assert seconds_without_profiler(profiled, 0.112, on_device=False) == pytest.approx([0.0992, 0.0128])


def test_an_account_loses_at_most_all_of_its_time() -> None:
    # 600 microseconds of the product and all of the 5 ms of small operations, which take less than 9 us each.
    profiled = ledger((MATMUL, 100, 100), (SMALL, 5, 900), (PYTHON, 10, 0))
    assert seconds_without_profiler(profiled, 0.1094, on_device=False) == pytest.approx([0.0994, 0.0, 0.010])


def test_kernels_of_a_device_keep_their_time() -> None:
    profiled = ledger((MATMUL, 100, 100), (PYTHON, 40, 2500))
    assert seconds_without_profiler(profiled, 0.120, on_device=True) == pytest.approx([0.100, 0.020])


def test_a_machine_that_was_slower_while_it_profiled_scales_the_rest() -> None:
    # 1,000 operations cost at most 10 ms of 60; what remains of 110 ms becomes 60.
    profiled = ledger((MATMUL, 100, 100), (SMALL, 20, 900))
    assert seconds_without_profiler(profiled, 0.060, on_device=False) == pytest.approx([0.054, 0.006])


@pytest.mark.parametrize(
    ("profiled", "step_s"),
    [
        (ledger((MATMUL, 100, 100), (SMALL, 40, 900)), 0.280),  # the profiled step was faster
        (ledger((MATMUL, 100, 0), (SMALL, 40, 0)), 0.070),  # no counts
    ],
)
def test_without_a_cost_per_operation_all_accounts_scale(profiled: Ledger, step_s: float) -> None:
    scaled = seconds_without_profiler(profiled, step_s, on_device=False)
    assert scaled == pytest.approx([step_s * 100 / 140, step_s * 40 / 140])


@given(
    st.lists(st.tuples(st.sampled_from((MATMUL, SMALL, PYTHON)), st.integers(1, 1000), st.integers(0, 1000)),
             min_size=1, max_size=3, unique_by=lambda entry: entry[0]),
    st.floats(0.01, 2.0),
)  # fmt: skip
def test_accounts_sum_to_the_step_and_are_not_negative(entries: list[tuple[str, int, int]], share: float) -> None:
    profiled = ledger(*entries)
    step_s = share * profiled.wall_ns / 1e9
    for on_device in (False, True):
        seconds = seconds_without_profiler(profiled, step_s, on_device)
        assert seconds.sum() == pytest.approx(step_s)
        assert (seconds >= 0).all()
