"""The errors of sums that are added in sequence, and the tensors that have them."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.numerics.compare.comparison_rule import MARGIN
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.compare.summation_errors import summation_errors, summed_terms
from trainyard.numerics.tensor_record import TensorRecord


@pytest.mark.parametrize("terms", [8, 100, 3_000, 100_000])
@pytest.mark.parametrize("mean", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("columns", [1, 30])
def test_sums_in_sequence_do_not_exceed_the_error(terms: int, mean: float, columns: int) -> None:
    """Of numbers with random signs, the sum of a single column may cancel: its error counts relative to the norm of its
    terms."""
    values = np.random.default_rng(terms + columns).standard_normal((terms, columns)) + mean
    single = values.astype(np.float32)
    in_sequence = np.add.accumulate(single, axis=0, dtype=np.float32)[-1]
    exact = single.astype(np.float64).sum(axis=0)
    size = max(np.linalg.norm(exact), np.linalg.norm(single))
    error = np.linalg.norm(in_sequence - exact) / size
    assert error <= MARGIN * summation_errors([terms], np.array([2.0**-24]))[0]


def test_half_precision_is_accumulated_in_float32() -> None:
    roundoff = np.array([2.0**-53, 2.0**-24, 2.0**-8, 2.0**-8])
    errors = summation_errors([100, 100, 100, 1], roundoff)
    assert errors.tolist() == [20 * 2.0**-53, 20 * 2.0**-24, 20 * 2.0**-24, 0]


def record(index: int, shape: tuple[int, ...], inputs: tuple[int, ...] = (), **fields: object) -> TensorRecord:
    values = {"step": 0, "phase": "backward", "role": "output", "module": "norm", "call": index, "dtype": "float32"}
    return TensorRecord(index=index, shape=shape, inputs=inputs, **{**values, **fields})  # pyright: ignore[reportArgumentType]


def test_a_sum_passes_its_terms_on_element_by_element() -> None:
    records = [
        record(0, (1024, 8), operation="aten.mul"),
        record(1, (8,), (0,), operation="aten.native_batch_norm_backward"),
        record(2, (8,), (1,), operation="aten.div"),
        record(3, (4, 8), (2,), operation="aten.expand_copy"),
        record(4, (8,), (2,), role="gradient", phase="optimizer", name="bias"),
        record(5, (8,), role="optimizer_state", phase="optimizer", name="bias.exp_avg"),
        record(6, (8,), role="weight", phase="optimizer", name="bias"),
        record(7, (8,), (7, 9), operation="aten.neg"),
    ]
    terms = summed_terms({LogicalKey(item.key, 0): item for item in records})
    assert list(terms.values()) == [1, 1024, 1024, 1, 1024, 4096, 1, 1]
