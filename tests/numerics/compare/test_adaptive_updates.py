"""Errors of weights after sign-like updates of an adaptive optimizer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.numpy_training import sketch, summarised
from trainyard.numerics.compare.adaptive_updates import update_errors
from trainyard.numerics.compare.comparison_rule import MARGIN
from trainyard.numerics.tensor_record import Phase, Role, TensorRecord


def record(
    step: int,
    role: Role,
    name: str,
    values: np.ndarray[tuple[int], np.dtype[np.float64]],
    phase: Phase = "optimizer",
) -> TensorRecord:
    return summarised(
        TensorRecord(index=0, step=step, phase=phase, role=role, module="m", name=name, dtype="float32"), values
    )


@pytest.mark.parametrize("elements", [32, 1000, 100_000])
@pytest.mark.parametrize("noise", [1e-6, 1e-3, 0.03])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("has_initial", [True, False], ids=["initial", "updated"])
def test_changed_signs_do_not_exceed_the_error(elements: int, noise: float, steps: int, has_initial: bool) -> None:
    """Weights that begin at 0 or at 1 and move by 0.01 in the direction of a gradient with relative noise."""
    random = np.random.default_rng(elements + steps)
    for first in (0.0, 1.0):
        exact = rounded = np.full(elements, first)
        records = [record(0, "weight", "bias", exact, "forward")] if has_initial else []
        weights, others = [], []
        for step in range(steps):
            gradient = random.standard_normal(elements)
            exact = exact - 0.01 * np.sign(gradient)
            rounded = rounded - 0.01 * np.sign(gradient + noise * random.standard_normal(elements))
            weights.append(len(records) + 1)
            records += [
                record(step, "gradient", "bias", gradient),
                record(step, "weight", "bias", exact),
                record(step, "optimizer_state", "bias.exp_avg_sq", gradient**2),
            ]
            others.append(float(np.linalg.norm(rounded - exact) / np.linalg.norm(exact)))
        sketches = np.array([np.frombuffer(item.sketch) for item in records])
        norms = np.array([item.norm for item in records])
        errors = update_errors(records, sketches, norms, np.full(len(records), noise))
        assert (MARGIN * errors[weights] >= others).all()
        assert np.flatnonzero(errors).tolist() == weights


def test_linear_optimizers_have_no_such_error() -> None:
    records = [
        record(0, "gradient", "weight", np.ones(4)),
        record(0, "weight", "weight", np.ones(4)),
        record(0, "optimizer_state", "weight.momentum_buffer", np.ones(4)),
    ]
    sketches = np.array([sketch(np.ones(4))] * 3)
    assert update_errors(records, sketches, np.full(3, 2.0), np.full(3, 0.1)).tolist() == [0, 0, 0]


def test_the_first_update_has_the_size_of_its_change() -> None:
    """A first update that is 10 times as large as the second is not judged by the second."""
    first, noise = np.ones(1000), 0.01
    updated = [first - 0.1, first - 0.11]
    gradients = [record(step, "gradient", "bias", first) for step in range(2)]
    states = [record(step, "optimizer_state", "bias.exp_avg_sq", first) for step in range(2)]
    weights = [record(step, "weight", "bias", values) for step, values in enumerate(updated)]
    steps = [item for step in zip(gradients, weights, states) for item in step]
    for before, ratio in (([record(0, "weight", "bias", first, "forward")], 10.0), ([], 1.0)):
        records = [*before, *steps]
        sketches = np.array([np.frombuffer(item.sketch) for item in records])
        norms = np.array([item.norm for item in records])
        errors = update_errors(records, sketches, norms, np.full(len(records), noise))
        changes = errors[[len(before) + 1, len(before) + 4]] * norms[[len(before) + 1, len(before) + 4]]
        assert changes[0] / changes[1] == pytest.approx(ratio, rel=1e-6)
        assert errors[: len(before)].tolist() == [0.0] * len(before)
