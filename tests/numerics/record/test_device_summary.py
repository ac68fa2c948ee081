"""A tensor of an accelerator is summarised there: only its summary is copied, and nothing else waits for the device."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

import numpy as np  # noqa: E402
import torch  # noqa: E402

from tests.numerics.record.simulated_device import DeviceTensor, SimulatedDevice  # noqa: E402
from trainyard.numerics.record import summarise as module  # noqa: E402
from trainyard.numerics.record.logical_index import index_block  # noqa: E402
from trainyard.numerics.record.positional_hash import multiplier_pool  # noqa: E402
from trainyard.numerics.record.sketch import sign_pool  # noqa: E402
from trainyard.numerics.tensor_record import BUCKETS, SAMPLES  # noqa: E402

HEADER = 7
"""Hash, three counts, sum, squares and largest value."""


@pytest.fixture(autouse=True)
def _no_cached_pools():
    yield
    module._positions.cache_clear()
    multiplier_pool.cache_clear()
    sign_pool.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("chunk", [1 << 12, 1 << 21])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_only_the_summary_leaves_the_device(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, chunk: int, is_transposed: bool
) -> None:
    monkeypatch.setattr(module, "DEVICE_CHUNK", chunk)
    monkeypatch.setenv("TRAINYARD_PURE", "1")
    values = (torch.randn(200, 300, generator=torch.Generator().manual_seed(0)) * 9).to(dtype)
    if dtype.is_floating_point:
        values[3, 5], values[7, 1] = float("nan"), float("-inf")
    values = values.T if is_transposed else values
    block, elements = index_block(tuple(values.shape), None), values.numel()
    expected = module._totals(values, block, elements)
    with SimulatedDevice() as device:
        module._totals(DeviceTensor(values), block, elements)  # copies random numbers and positions to the device
        device.to_host.clear()
        device.to_device.clear()
        device.waits.clear()
        totals = module._totals(DeviceTensor(values), block, elements)
    assert device.to_host == [HEADER + BUCKETS + SAMPLES]
    assert device.to_device == []
    assert device.waits == []
    assert (totals.digest, totals.maximum, totals.nonfinite) == (expected.digest, expected.maximum, expected.nonfinite)
    assert totals.sample == expected.sample
    np.testing.assert_allclose(np.frombuffer(totals.sketch), np.frombuffer(expected.sketch), rtol=1e-9, atol=1e-9)
