"""The memory of a comparison: each replica costs little more than its sketches."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path

from tests.numpy_training import NumpyTraining
from trainyard.numerics.compare.compare_records import compare_records
from trainyard.numerics.tensor_record import BUCKETS


def peak_bytes(a: Path, b: Path) -> int:
    """The largest memory that Python objects and arrays have in a comparison."""
    tracemalloc.start()
    try:
        compare_records(a, b)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_replica_takes_little_more_memory_than_its_sketches(tmp_path: Path) -> None:
    training = NumpyTraining(layers=30, width=8, batch=4, steps=3)
    a, b = training.write_all(tmp_path / "a", 2), training.write(tmp_path / "b")
    few = peak_bytes(a, b)
    for replica in range(3, 11):
        shutil.copytree(a / "replica-1", a / f"replica-{replica}")
    tensors = compare_records(a, b).counts.compared
    assert tensors > 800
    assert (peak_bytes(a, b) - few) / (8 * tensors) < 4 * 8 * BUCKETS
