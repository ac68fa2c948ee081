"""Warnings about a loaded or throttled machine: present with the numbers if it was, absent if it was not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.machine_load import MachineLoad, load_of_ranks, load_warning, present_load_warning, throttle_warning

CORES = st.integers(1, 512)
SHARES = st.floats(0, 1)


def load(cores: int = 2, run: float = 0.0, other: float = 0.0, stolen: float = 0.0, throttles: int = 0) -> MachineLoad:
    return MachineLoad(
        window_s=10.0, cores=cores, run_cores=run, other_cores=other, stolen_cores=stolen, cpu_throttles=throttles
    )


@pytest.mark.parametrize(
    ("measured", "numbers"),
    [
        (load(cores=2, run=1.0, other=0.9), ["0.9", "2", "1.0"]),
        (load(cores=64, run=10.0, other=50.0), ["50.0", "64", "10.0"]),
        (load(cores=2, run=1.0, stolen=0.3), ["0.3", "2"]),
        (load(cores=2, run=1.0, throttles=1200), ["1,200"]),
    ],
)
def test_loaded_machine_is_reported_with_its_numbers(measured: MachineLoad, numbers: list[str]) -> None:
    assert re.findall(r"[\d,.]*\d", load_warning(measured)) == numbers


@pytest.mark.parametrize(
    "measured",
    [
        None,
        load(),
        load(cores=2, run=2.0),  # the run's own work is not a load
        load(cores=64, run=4.0, other=20.0),  # 40 cores are idle: nothing is delayed
        load(cores=2, run=1.9, other=0.1),
    ],
)
def test_idle_machine_gives_no_warning(measured: MachineLoad | None) -> None:
    assert load_warning(measured) == ""


@given(cores=CORES, run=SHARES, other=SHARES, more=SHARES)
def test_more_load_of_others_never_removes_the_warning(cores: int, run: float, other: float, more: float) -> None:
    light = load(cores=cores, run=run * cores, other=other * cores)
    heavy = load(cores=cores, run=run * cores, other=(other + more) * cores)
    assert bool(load_warning(light)) <= bool(load_warning(heavy))


def test_ranks_are_not_others_of_each_other() -> None:
    # Two ranks with 0.9 and 0.8 cores, and 0.2 cores of other processes.
    ranks = [load(cores=2, run=0.9, other=1.0), load(cores=2, run=0.8, other=1.1)]
    together = load_of_ranks(ranks)
    assert together is not None
    assert (together.run_cores, together.other_cores) == pytest.approx((1.7, 0.2))
    assert load_of_ranks([*ranks, None]) is None
    assert load_of_ranks([]) is None


@given(cores=CORES, other=SHARES)
def test_present_load_is_reported_from_a_tenth_of_the_cores(cores: int, other: float) -> None:
    assert bool(present_load_warning(load(cores=cores, other=other * cores))) == (other * cores >= 0.1 * cores)


def test_throttled_devices_are_named_with_clock_and_reason() -> None:
    telemetry = {
        "nvidia.0.slowdown": "",
        "at_work.nvidia.1.slowdown": "power cap, power brake",
        "at_work.nvidia.1.clocks.sm": "1110 MHz",
        "at_work.nvidia.1.clocks.max.sm": "1980 MHz",
        "at_work.nvidia.0.clocks.sm": "1980 MHz",
    }
    assert "nvidia 1 (power cap, power brake, 1110 of 1980 MHz)" in throttle_warning(telemetry)
    assert "nvidia 0" not in throttle_warning(telemetry)
    assert throttle_warning({"nvidia.0.slowdown": "", "nvidia.0.throttle": "0x1"}) == ""
