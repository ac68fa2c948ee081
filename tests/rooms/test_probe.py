"""The matmul probe under a clock that the test moves."""

import pytest

torch = pytest.importorskip("torch")

from trainyard.run.clock import Clock  # noqa: E402
from trainyard.run.probe import matmul_rate  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def ticking(ns):
    """A clock that moves `ns` whenever it is looked at."""
    now = 0

    def look():
        nonlocal now
        now += ns
        return now

    return Clock(look=look)


def test_the_rate_is_work_over_time():
    claim = matmul_rate(CPU, torch.float32, ticking(5_000_000))
    # A product of 256 x 256 matrices "took" 5 ms; two of them make a run, which "took" 5 ms too.
    assert claim.value == pytest.approx(2 * 2 * 256**3 / 5e-3)
    assert (claim.unit, claim.measured) == ("FLOP/s", True)
    assert "256 x 256" in claim.source
    assert "float32" in claim.source


def test_sizes_grow_until_a_product_lasts():
    looks = iter([0, 10, 0, 20, *range(0, 10**12, 10**7)])  # 256 in 10 ns, 512 in 20 ns, 1024 in 10 ms
    claim = matmul_rate(CPU, torch.bfloat16, Clock(look=lambda: next(looks)), ranks=2)
    assert "1024 x 1024" in claim.source
    assert "2 ranks at once" in claim.source


def test_ranks_meet_once_before_the_runs():
    met = []
    matmul_rate(CPU, torch.float32, ticking(5_000_000), together=lambda: met.append(True))
    assert met == [True]


def test_the_clock_waits_for_the_device_before_it_looks():
    did = []
    Clock(synchronize=lambda: did.append("waited"), look=lambda: did.append("looked") or 0).now()
    assert did == ["waited", "looked"]


def test_on_this_machine():
    claim = matmul_rate(CPU, torch.float32, Clock())
    assert 1e7 < claim.value < 1e15
