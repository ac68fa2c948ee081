"""Jitter of sums by one unit in the last place."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

import torch  # noqa: E402

from trainyard.numerics.ulp_jitter import UlpJitter  # noqa: E402

BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_sums_move_by_one_unit_in_the_last_place_both_ways(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(64, 64, generator=generator).to(dtype) for _ in range(2))
    expected = left @ right
    with UlpJitter(0):
        moved = left @ right
    units = moved.view(BITS[dtype]).int() - expected.view(BITS[dtype]).int()
    assert units.abs().max() == 1
    assert (units == 1).float().mean() == pytest.approx(0.5, abs=0.05)
    assert (units == 0).float().mean() < 0.01  # a power of two may stay: half a unit rounds to even


@pytest.mark.parametrize("value", [0.0, torch.inf, -torch.inf])
def test_zeros_and_infinities_stay(value: float) -> None:
    values = torch.full((99,), value)
    with UlpJitter(0):
        assert torch.equal(values + values, values)


def test_products_of_two_values_stay() -> None:
    with UlpJitter(0):
        assert torch.equal(torch.full((99,), 3.0) * 7, torch.full((99,), 21.0))


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_counts_stay_and_values_that_are_rounded_move(dtype: torch.dtype) -> None:
    counts = torch.histc(torch.arange(300.0) % 3, bins=3).to(dtype) / 4  # 25 of each
    with UlpJitter(0, all_operations=True):
        assert torch.equal(torch.histc(torch.arange(300.0) % 3, bins=3).cumsum(0).int(), torch.tensor([100, 200, 300]))
        assert torch.equal(counts + counts, torch.full((3,), 50.0).to(dtype))
        assert not torch.equal(counts + 0.5, torch.full((3,), 25.5).to(dtype))
        large = torch.full((99,), 2.0 / torch.finfo(dtype).eps, dtype=dtype)
        assert not torch.equal(large + large, 2 * large)
        assert torch.empty(0, 3).add(1).shape == (0, 3)


def test_seed_determines_jitter_and_global_generator_is_unused() -> None:
    def total(seed: int) -> torch.Tensor:
        with UlpJitter(seed):
            return torch.linspace(1, 2, 1000) + 1

    before = torch.get_rng_state()
    assert torch.equal(total(3), total(3))
    assert not torch.equal(total(3), total(4))
    assert torch.equal(torch.get_rng_state(), before)


def test_gradients_are_jittered_in_the_backward_pass() -> None:
    weight = torch.linspace(1, 2, 12).view(3, 4).requires_grad_()
    inputs = torch.linspace(3, 4, 20).view(5, 4)
    [exact] = torch.autograd.grad((inputs @ weight.T).square().sum(), [weight])
    with UlpJitter(0):
        [moved] = torch.autograd.grad((inputs @ weight.T).square().sum(), [weight])
    assert not torch.equal(moved, exact)
    torch.testing.assert_close(moved, exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [1, 2**15, 2**18])
def test_results_of_any_size_are_jittered(size: int) -> None:
    with UlpJitter(0):
        moved = torch.full((size,), 1.5) + 1.25
    assert (moved != 2.75).all()
