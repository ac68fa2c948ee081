"""Distances estimated from sketches."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from trainyard.numerics.record.sketch import PERIOD, sketch_of_range  # noqa: E402
from trainyard.numerics.record.summarise import summarise  # noqa: E402
from trainyard.numerics.tensor_record import BUCKETS, Shard  # noqa: E402

SIZES = (*range(256, 256 + 64 * 38, 64), 10_007)


def estimate(left: Tensor, right: Tensor, first: int) -> float:
    """The distance of two ranges at logical index `first`, from their sketches alone."""
    shard, shape = Shard(offset=(first,), shape=(len(left),)), (2**40,)
    sketches = [np.frombuffer(summarise(part, shard=shard, shape=shape).sketch) for part in (left, right)]
    return float(np.linalg.norm(sketches[0] - sketches[1]))


def errors(kind: str, size: int, generator: torch.Generator) -> Tensor:
    """An error of `size` elements."""
    noise = torch.randn(size, generator=generator, dtype=torch.float64)
    if kind == "constant":
        return torch.full_like(noise, 0.25)
    if kind == "sparse":
        return noise * (torch.rand(size, generator=generator) < 0.05)
    if kind == "periodic":
        return (torch.arange(size) % 128 < 64).double()
    return noise


@pytest.mark.parametrize("kind", ["noise", "constant", "sparse", "periodic"])
def test_estimated_distance_is_unbiased_within_nine_percent(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    ratios: list[float] = []
    for number in range(200):
        size = SIZES[number % len(SIZES)]
        first = int(torch.randint(2**39, (), generator=generator))
        values = torch.randn(size, generator=generator, dtype=torch.float64)
        error = errors(kind, size, generator)
        ratios.append(estimate(values, values + error, first) / float(error.norm()))
    squares = np.square(ratios)
    # The relative variance of the squared distance is at most 2 / BUCKETS.
    assert np.mean(squares) == pytest.approx(1, abs=4 * np.sqrt(2 / BUCKETS / len(ratios)))
    assert np.std(ratios) < 1.2 / np.sqrt(2 * BUCKETS)
    assert 0.6 < min(ratios) < max(ratios) < 1.4


@pytest.mark.parametrize("position", [0, 777, 9999])
def test_the_distance_by_one_wrong_element_is_exact(position: int) -> None:
    values = torch.randn(10_000, dtype=torch.float64)
    wrong = values.clone()
    wrong[position] += 0.5
    assert estimate(values, wrong, 0) == pytest.approx(0.5, rel=1e-9)


def test_a_swap_of_two_elements_has_its_distance() -> None:
    values = torch.zeros(1000)
    values[5], swapped = 3.0, torch.zeros(1000)
    swapped[70] = 3.0
    assert estimate(values, swapped, 0) == pytest.approx(np.sqrt(18), rel=1e-9)


def test_errors_do_not_add_up_over_repetitions_of_the_pool() -> None:
    ones = torch.ones(64 * 50, dtype=torch.float64)
    ratios: list[float] = []
    for number in range(200):
        first = 64 * 1000 * number
        both = sketch_of_range(ones, first) + sketch_of_range(ones, PERIOD + first)
        ratios.append(float(both.square().sum()) / (2 * len(ones)))
    assert np.mean(ratios) == pytest.approx(1, abs=0.15)
