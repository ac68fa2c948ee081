"""Compiled sums over tensors on the host are those that torch computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from trainyard.formats.native_build import build  # noqa: E402
from trainyard.numerics.record import native  # noqa: E402
from trainyard.numerics.record.sketch import SIGNS  # noqa: E402
from trainyard.numerics.record.summarise import Summary, summarise  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    if native.library() is None:
        pytest.skip(f"the compiled sums are not built: {build(native.LIBRARY.parent)}")


def both_ways(tensor: Tensor) -> tuple[Summary, Summary]:
    with pytest.MonkeyPatch.context() as patch:
        compiled = summarise(tensor)
        patch.setenv("TRAINYARD_PURE", "1")
        return compiled, summarise(tensor)


def check_equal(tensor: Tensor) -> None:
    compiled, expected = both_ways(tensor)
    assert (compiled.hash, compiled.sample, compiled.nonfinite) == (expected.hash, expected.sample, expected.nonfinite)
    assert compiled.maximum == expected.maximum
    scale = expected.norm or 1.0
    assert (compiled.norm, compiled.mean) == pytest.approx((expected.norm, expected.mean), rel=1e-12, abs=1e-13 * scale)
    sketches = (np.frombuffer(summary.sketch) for summary in (compiled, expected))
    np.testing.assert_allclose(*sketches, rtol=0, atol=1e-12 * scale)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 70), min_size=0, max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 2**31),
    special=st.lists(st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-310, 3e38]), max_size=5),
    transposed=st.booleans(),
)
def test_compiled_sums_are_those_of_torch(shape, dtype, seed, special, transposed) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=generator, dtype=torch.float64)
    for number, value in enumerate(special[: tensor.numel()]):
        tensor.view(-1)[seed % tensor.numel() - number] = value
    tensor = tensor.to(dtype)
    check_equal(tensor.transpose(0, -1) if transposed and tensor.dim() else tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_compiled_sums_repeat_pools_as_torch_does(dtype: torch.dtype) -> None:
    """The multipliers of hashes repeat after 65,536 lanes, the signs of sketches after `SIGNS` elements."""
    check_equal(torch.randn(SIGNS + 1000, generator=torch.Generator().manual_seed(1)).to(dtype))


def test_a_tensor_that_wraps_another_one_is_summarised():
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    values = torch.arange(100.0)
    assert summarise(AsyncCollectiveTensor(values)) == summarise(values)
