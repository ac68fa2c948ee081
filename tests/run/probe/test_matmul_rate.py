"""The matmul probe under a clock that the test moves."""

import pytest

torch = pytest.importorskip("torch")

from trainyard.run.local.step_clock import StepClock  # noqa: E402
from trainyard.run.probe.matmul_rate import matmul_rate  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
LAST = 7
"""The number of the last try, and of pauses."""


def no_pause(_):
    pass


def ticking(ns):
    """A clock that moves `ns` whenever it is looked at."""
    now = 0

    def look():
        nonlocal now
        now += ns
        return now

    return StepClock(read_ns=look)


def test_the_rate_is_work_over_time():
    claim = matmul_rate(CPU, torch.float32, ticking(5_000_000), pause=no_pause)
    # A product of 256 x 256 matrices "took" 5 ms; two of them make a run, which "took" 5 ms too.
    assert claim.value == pytest.approx(2 * 2 * 256**3 / 5e-3)
    assert (claim.unit, claim.measured) == ("FLOP/s", True)
    assert "256 x 256" in claim.source
    assert "float32" in claim.source


def test_sizes_grow_until_a_product_lasts():
    """256 in 10 ns and 512 in 20 ns, whatever else held the machine up once, 1024 in 10 ms."""
    held_up = [0, 10**8]
    looks = iter([*held_up, 0, 10, 0, 10, 0, 20, *held_up, 0, 20, *range(0, 10**12, 10**7)])
    claim = matmul_rate(CPU, torch.bfloat16, StepClock(read_ns=lambda: next(looks)), ranks=2, pause=no_pause)
    assert "1024 x 1024" in claim.source
    assert "2 ranks at once" in claim.source


def test_the_best_run_counts_however_busy_the_machine_was_before():
    """A product of 256 x 256 takes 50 ms until the last try, where it takes 5."""
    now, waited = [0], []

    def look():
        now[0] += 5_000_000 if len(waited) == LAST else 50_000_000
        return now[0]

    claim = matmul_rate(CPU, torch.float32, StepClock(read_ns=look), pause=waited.append)
    assert claim.value == pytest.approx(2 * 256**3 / 5e-3)
    assert len(waited) == LAST
    assert all(0 < seconds < 1 for seconds in waited)


def test_ranks_meet_before_each_try():
    met = []
    matmul_rate(CPU, torch.float32, ticking(5_000_000), together=lambda: met.append("met"), pause=met.append)
    assert met.count("met") == LAST + 1
    assert met[0] == met[-1] == "met"
    assert "met" not in met[1::2]


def test_the_clock_waits_for_the_device_before_it_looks():
    did = []
    StepClock(synchronize=lambda: did.append("waited"), read_ns=lambda: did.append("looked") or 0).now()
    assert did == ["waited", "looked"]


def test_on_this_machine():
    claim = matmul_rate(CPU, torch.float32, StepClock())
    assert 1e7 < claim.value < 1e15
