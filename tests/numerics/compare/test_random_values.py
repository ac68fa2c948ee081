"""Random numbers that differ are distinguished from faults: on records of real scripts, and on drawn numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.numpy_training import summarised
from trainyard.numerics.compare.compare_records import compare_records
from trainyard.numerics.compare.random_values import are_other_draws
from trainyard.numerics.record.record_command import record_command
from trainyard.numerics.record_state import RecordOptions
from trainyard.numerics.tensor_record import TensorRecord

SCRIPT = Path(__file__).with_name("random_training.py")
EMPTY = TensorRecord(index=0, step=0, phase="forward", role="output", operation="aten.normal_", dtype="float32")


@pytest.mark.parametrize("size", [64, 10_000])
@pytest.mark.parametrize("distribution", ["normal", "uniform", "exponential", "integers"])
def test_draws_of_one_distribution_are_not_scaled_numbers(distribution: str, size: int) -> None:
    def draw(seed: int) -> np.ndarray:
        generator = np.random.default_rng(seed)
        if distribution == "integers":
            return generator.integers(0, 50, size)
        return getattr(generator, distribution)(size=size)

    pairs = [(summarised(EMPTY, draw(seed)), summarised(EMPTY, draw(1000 + seed))) for seed in range(200)]
    assert all(are_other_draws(a, b) for a, b in pairs)
    for seed in range(20):
        numbers = draw(seed)
        assert not are_other_draws(summarised(EMPTY, numbers), summarised(EMPTY, 0.5 * numbers))
        if size > 64:
            if distribution == "normal":  # with a mean of 0, as of weights
                partly = np.where(np.arange(size) < 0.05 * size, draw(1000 + seed), numbers)
                assert not are_other_draws(summarised(EMPTY, numbers), summarised(EMPTY, partly))
            assert not are_other_draws(summarised(EMPTY, numbers), summarised(EMPTY, 1.5 * draw(1000 + seed)))


def record(folder: Path, device: str, replicas: int, level: str) -> Path:
    command = [sys.executable, str(SCRIPT), "--device", device]
    record_command(command, folder, RecordOptions(steps=(0, 1), level=level, replicas=replicas))
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return record(tmp_path_factory.mktemp("reference") / "a", "cpu", 2, "operations")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "kind", "operation"),
    [
        ("weights", "random values", ""),
        ("dropout", "random values", ""),
        ("data", "random values", "aten.randn"),
        ("deviation", "value", ""),
        ("no dropout", "value", ""),
        ("epsilon", "value", "aten.native_layer_norm"),
    ],
)
def test_random_numbers_that_differ_are_not_named_as_a_fault(
    reference: Path, tmp_path: Path, device: str, kind: str, operation: str
) -> None:
    comparison = compare_records(reference, record(tmp_path / "b", device, 0, "operations"))
    assert comparison.verdict == "different"
    assert comparison.first is not None
    assert comparison.first.kind == kind
    if operation:
        assert comparison.first.tensor.operation == operation
    assert (comparison.first.error is None) == (kind == "random values")
    if device in ("weights", "deviation"):
        tensor = comparison.first.tensor
        assert (tensor.role, tensor.phase, tensor.module, tensor.name) == (
            "weight",
            "forward",
            "Sequential.0",
            "weight",
        )
    if device == "dropout":
        assert "aten.bernoulli_" in comparison.first.detail
        assert "aten.native_dropout" in comparison.first.detail


@pytest.mark.torch
@pytest.mark.slow
def test_records_without_operations_name_the_random_state(reference: Path, tmp_path: Path) -> None:
    comparison = compare_records(reference, record(tmp_path / "b", "dropout", 0, "modules"))
    assert comparison.first is not None
    assert (comparison.first.kind, comparison.first.tensor.operation) == ("random values", "")
    assert "step 0" in comparison.first.detail
