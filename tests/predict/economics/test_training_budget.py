"""Days, dollars and energy of a training as functions of failures, restarts, storage and power cap."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refused import refused
from trainyard import machine
from trainyard.errors import BadInput
from trainyard.machine import Claim
from trainyard.predict.economics import step_cost
from trainyard.predict.economics.power_cap import LEAST_SHARE
from trainyard.predict.economics.step_cost import Bill
from trainyard.predict.economics.training_budget import TrainingBudget
from trainyard.predict.inputs.machine_model import ReferencePeak

H100 = machine.load("h100")
SIZE = 1e11
"""Bytes of a checkpoint."""
ROUNDING = 1 + 1e-9


def claim(value: float, unit: str) -> Claim:
    return Claim(value=value, unit=unit, source="a test")


def bill(budget: TrainingBudget, devices: int = 256, name: str = "h100") -> Bill:
    return step_cost.bill(
        [(machine.load(name), devices)], 1.0, tokens=1e6, flops=1e15, peak=ReferencePeak(1e18, "bfloat16"),
        budget=budget, checkpoint_bytes=SIZE,
    )  # fmt: skip


def costs(bill_of: Bill) -> tuple[float, float, float]:
    assert bill_of.dollars is not None
    assert bill_of.kwh is not None
    return bill_of.days, bill_of.dollars, bill_of.kwh


def assert_not_cheaper(worse: Bill, better: Bill) -> None:
    assert all(more * ROUNDING >= less for more, less in zip(costs(worse), costs(better), strict=True))


@settings(max_examples=30)
@given(st.floats(100, 1e8), st.floats(1, 10))
def test_more_failures_are_never_cheaper(hours: float, factor: float) -> None:
    rare, often = (TrainingBudget(tokens=1e9, mtbf=claim(each, "h")) for each in (hours * factor, hours))
    assert_not_cheaper(bill(often), bill(rare))


@settings(max_examples=30)
@given(st.floats(0.1, 1e4), st.floats(1, 100), st.floats(300, 1e6))
def test_faster_storage_is_never_slower(gigabytes: float, factor: float, hours: float) -> None:
    """Also if a checkpoint takes longer than the mean time between failures of the job."""
    slow, fast = (
        TrainingBudget(tokens=1e9, storage=claim(1e9 * each, "bytes/s"), mtbf=claim(hours, "h"))
        for each in (gigabytes, gigabytes * factor)
    )
    assert_not_cheaper(bill(slow), bill(fast))


@settings(max_examples=30)
@given(st.floats(1, 3600), st.floats(1, 10))
def test_a_longer_restart_is_never_cheaper(seconds: float, factor: float) -> None:
    short, long = (TrainingBudget(tokens=1e9, restart=claim(each, "s")) for each in (seconds, seconds * factor))
    assert_not_cheaper(bill(long), bill(short))


@settings(max_examples=30)
@given(st.floats(70, 2000), st.floats(1, 5))
def test_a_higher_power_cap_is_never_slower(watts: float, factor: float) -> None:
    low, high = (bill(TrainingBudget(tokens=1e12, power_cap=claim(each, "W"))) for each in (watts, watts * factor))
    assert low.days == high.days
    assert low.days * low.longest_ratio * ROUNDING >= high.days * high.longest_ratio
    assert low.kwh is not None
    assert high.kwh is not None
    assert low.kwh <= high.kwh * ROUNDING, "at equal speed"
    assert high.longest_ratio >= 1


def test_energy_with_a_power_cap_is_at_most_that_without() -> None:
    free, capped = bill(TrainingBudget(tokens=1e12)), bill(TrainingBudget(tokens=1e12, power_cap=claim(350, "W")))
    assert free.kwh is not None
    assert capped.kwh == pytest.approx(free.kwh / 2)
    assert (free.longest_ratio, capped.longest_ratio) == (1, 2)


def test_a_checkpoint_takes_its_size_over_the_bandwidth() -> None:
    of_50_s = bill(TrainingBudget(tokens=1e12, storage=claim(2e9, "bytes/s")))
    assert of_50_s.goodput is not None
    assert of_50_s.goodput.save_s == 50
    assert of_50_s.days == bill(TrainingBudget(tokens=1e12, save=claim(50, "s"))).days


@pytest.mark.parametrize(("name", "watts"), [("trn2", 300), ("h100", 700 * LEAST_SHARE * 0.99)])
def test_a_power_cap_needs_a_known_power_and_a_plausible_value(name: str, watts: float) -> None:
    with refused(BadInput, f"{watts:g}"):
        bill(TrainingBudget(tokens=1e12, power_cap=claim(watts, "W")), name=name)


def test_an_mfu_above_one_is_refused() -> None:
    with refused(BadInput, "bfloat16"):
        step_cost.bill(
            [(H100, 1)], 1.0, tokens=1.0, flops=2e15, peak=ReferencePeak(1e15, "bfloat16"), budget=TrainingBudget()
        )
