"""The interval of the ratio of two predicted steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import refused
from trainyard.errors import BadInput
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.predict.search.layout_ratio import (
    LARGEST_TIED_RATIO,
    SPREAD,
    StepRatio,
    ledger_distance,
    log_spread,
    needed_spread,
    share_distance,
    step_ratio,
)

ACCOUNTS = ("compute/matmul", "compute/attention", "comm/all_gather@dp_shard", "bubble/steady@pp")
TIMES = st.lists(st.integers(1, 10**9), min_size=len(ACCOUNTS), max_size=len(ACCOUNTS))


def ledger(times: list[int], accounts: tuple[str, ...] = ACCOUNTS) -> Ledger:
    return Ledger(
        wall_ns=sum(times),
        entries=tuple(
            Entry(account=Account.parse(account), phase="forward", ns=ns, hidden_ns=0, how="modelled")
            for account, ns in zip(accounts, times, strict=True)
        ),
        basis="predicted",
        scope=Scope(steps=("predicted",), ranks=(0,), reduce="mean"),
        source="a test",
    )


@given(TIMES, TIMES)
def test_distance_is_symmetric_and_at_most_one(first: list[int], second: list[int]) -> None:
    distance = ledger_distance(ledger(first), ledger(second))
    assert distance == pytest.approx(ledger_distance(ledger(second), ledger(first)))
    assert 0 <= distance <= 1
    assert ledger_distance(ledger(first), ledger(first)) == 0


def test_distance_is_the_share_of_the_step_in_different_accounts() -> None:
    assert share_distance({"a": 3.0, "b": 1.0}, {"a": 1.0, "b": 1.0}) == pytest.approx(0.25)
    assert share_distance({"a": 1.0}, {"b": 7.0}) == 1


@given(TIMES, st.integers(2, 9))
def test_ratio_of_equal_shares_is_certain(times: list[int], factor: int) -> None:
    ratio = step_ratio(ledger([factor * ns for ns in times]), ledger(times))
    assert ratio.low == pytest.approx(factor)
    assert ratio.high == pytest.approx(factor)
    assert not ratio.tied


@given(TIMES, TIMES)
def test_tie_is_symmetric_and_bounded(first: list[int], second: list[int]) -> None:
    ratio, inverse = step_ratio(ledger(first), ledger(second)), step_ratio(ledger(second), ledger(first))
    assert ratio.low == pytest.approx(1 / inverse.high)
    assert ratio.tied == inverse.tied or min(abs(ratio.low - 1), abs(ratio.high - 1)) < 1e-9
    if ratio.tied:
        assert ratio.ratio * (1 + 1e-9) >= 1 / LARGEST_TIED_RATIO
        assert ratio.ratio <= LARGEST_TIED_RATIO * (1 + 1e-9)


@given(st.floats(0, 1), st.floats(0, 1))
def test_uncertainty_grows_with_the_distance(first: float, second: float) -> None:
    less, more = sorted((first, second))
    assert 0 <= log_spread(less) <= log_spread(more) < SPREAD


@given(st.floats(-1, 1), st.floats(0.01, 1))
def test_needed_spread_is_the_least_that_covers_an_error(error: float, distance: float) -> None:
    assert 1.2816 * log_spread(distance, needed_spread(error, distance)) == pytest.approx(abs(error))


def test_impossible_ratios_are_refused() -> None:
    for fields in ({"low": 1.2}, {"high": 1.0}, {"low": 0.0}, {"tied": False}):
        with refused(BadInput, "1.1"):
            StepRatio(**{"ratio": 1.1, "low": 0.9, "high": 1.3, "tied": True} | fields)
