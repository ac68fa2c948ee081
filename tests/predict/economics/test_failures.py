"""Goodput under failures, compared with published fleets and with runs simulated failure by failure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import refused
from trainyard.errors import BadInput
from trainyard.machine import Claim
from trainyard.predict.economics.failures import (
    DEVICE_MTBF,
    best_interval,
    expected_seconds,
    goodput,
    mean_time_between_failures,
)

HOUR = 3600.0
CLUSTERS = {
    "llama3": DEVICE_MTBF,
    "rsc-1": Claim(value=8 * 24 / 6.50e-3, unit="h", source="Kokolis et al. 2024, arXiv:2410.21680: cluster 1, A100"),
    "rsc-2": Claim(value=8 * 24 / 2.34e-3, unit="h", source="Kokolis et al. 2024, arXiv:2410.21680: cluster 2, A100"),
}
"""Published failure rates per node of 8 devices, as hours between failures of a device."""


@pytest.mark.parametrize(
    ("fleet", "nodes", "hours"),
    [("rsc-1", 2048, 1.8), ("llama3", 2048, 54 * 24 / 419), ("rsc-2", 2048, 5.0), ("rsc-1", 128, 28.8)],
)
def test_mtbf_matches_published_fleets(fleet: str, nodes: int, hours: float) -> None:
    assert mean_time_between_failures(8 * nodes, CLUSTERS[fleet]) / HOUR == pytest.approx(hours, rel=0.01)


def test_llama_3_goodput_is_above_90_percent() -> None:
    """As published, with 10 minutes to restart."""
    result = goodput(54 * 24 * HOUR * 0.9, 16_384)
    assert 0.9 < result.share < 0.93
    assert result.low < result.share < result.high


def run_once(random: np.random.Generator, work: float, every: float, save: float, restart: float, mean: float) -> float:
    """Simulates a run failure by failure and returns the elapsed seconds."""
    clock, done, fails = 0.0, 0.0, random.exponential(mean)
    while done < work:
        segment = min(every, work - done) + save
        if clock + segment <= fails:
            clock, done = clock + segment, done + every
            continue
        while True:  # the segment is lost, and a restart may fail too
            clock = fails
            fails = clock + random.exponential(mean)
            if clock + restart <= fails:
                clock += restart
                break
    return clock


@pytest.mark.parametrize(("nodes", "days"), [(2048, 4), (512, 20), (64, 60)])
def test_mean_and_interval_match_simulated_runs(nodes: int, days: int) -> None:
    result = goodput(days * 24 * HOUR, 8 * nodes, draws=2000)
    random = np.random.default_rng(1)
    elapsed = np.array([
        run_once(random, days * 24 * HOUR, result.every_s, 10.0, 600.0, result.mtbf_s) for _ in range(600)
    ])  # fmt: skip
    shares = days * 24 * HOUR / elapsed
    assert np.mean(shares) == pytest.approx(result.share, abs=0.004)
    assert np.quantile(shares, (0.1, 0.9)) == pytest.approx([result.low, result.high], abs=0.01)


@pytest.mark.parametrize("work_s", [1.0, 60.0, HOUR])
def test_the_range_of_a_training_shorter_than_the_checkpoint_interval_contains_its_mean(work_s: float) -> None:
    result = goodput(work_s, 8)
    assert result.every_s > work_s
    assert result.share > 0.99
    assert result.low == pytest.approx(result.share, abs=0.001)


@given(st.floats(60, 1e7), st.floats(1e-3, 1000))
def test_best_interval_is_optimal(mtbf: float, save: float) -> None:
    best = best_interval(mtbf, save)
    cost = expected_seconds(1e6, best, save, 60.0, mtbf)
    for factor in (0.5, 0.8, 0.99, 1.01, 1.25, 2.0):
        assert expected_seconds(1e6, best * factor, save, 60.0, mtbf) >= cost * (1 - 1e-9)


@given(st.integers(1, 32_768), st.floats(4_000, 2e7))
def test_goodput_falls_with_more_devices(devices: int, hours: float) -> None:
    mtbf = Claim(value=hours, unit="h", source="made up")
    smaller, larger = goodput(HOUR * 240, devices, mtbf, draws=8), goodput(HOUR * 240, devices * 2, mtbf, draws=8)
    assert 0 < larger.share <= smaller.share <= 1
    assert larger.mtbf_s == pytest.approx(smaller.mtbf_s / 2)


def test_zero_devices_or_mtbf_are_refused() -> None:
    with refused(BadInput, "0 devices"):
        mean_time_between_failures(0)
    with refused(BadInput, "4 devices", "every 0 h"):
        mean_time_between_failures(4, Claim(value=0.0, unit="h", source="a test"))


@pytest.mark.parametrize("mtbf_s", [1.0, 44.0, 130.0])
def test_failures_that_leave_less_than_one_percent_for_training_are_refused(mtbf_s: float) -> None:
    mtbf = Claim(value=4_096 * mtbf_s / HOUR, unit="h", source="a test")
    with refused(BadInput, "4,096 devices", f"every {mtbf_s:.3g} s", "600 s", "would not advance", "1 %"):
        goodput(HOUR, 4_096, mtbf)
    assert goodput(HOUR, 4_096 * mtbf_s / 200, mtbf).share > 0.01
