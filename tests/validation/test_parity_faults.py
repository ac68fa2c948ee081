"""Tolerances from rounding: planted faults are detected, trainings that differ by rounding only are equal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from trainyard.numerics.parity import alone
from trainyard.numerics.parity_mixes import MIXES

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

JOB = alone(next(mix.job for mix in MIXES if mix.name == "FSDP2: GPT"))

DETECTED = {
    "float32": (2.0**-18, 2.0**-15, 2.0**-11, 2.0**-14),
    "bfloat16": (2.0**-6, 2.0**-3, None, 2.0**-2),
    "float16": (2.0**-8, 2.0**-5, 1.0, 2.0**-4),
}
"""Number format -> a size of each fault that must be detected, in the order of `FAULTS`: two to four times the smallest
measured in docs/explanation/parity.md. None: rounding hides even the whole fault."""


@pytest.mark.parametrize("dtype", DETECTED)
def test_planted_faults_are_different_and_rounding_is_equal(dtype: str) -> None:
    import torch

    from validation.parity_faults import FAULTS, SEED, differs, reference, train

    torch.set_num_threads(1)
    job = replace(JOB, recipe=replace(JOB.recipe, dtype=dtype))
    expected = reference(job)
    assert not differs(train(job, SEED), expected)
    for (name, plant), size in zip(FAULTS.items(), DETECTED[dtype], strict=True):
        assert size is None or differs(train(job, SEED, plant, size), expected), name


def test_float64_reference_has_the_losses_of_float32() -> None:
    """The same weights and samples: only the rounding of float32, in the eighth digit, differs."""
    from validation.float64_training import train_in_float64
    from validation.parity_faults import train

    exact, single = train_in_float64(JOB, 2), train(JOB)[:2]
    for step, expected in zip(single, exact):
        assert step.loss == pytest.approx(expected.loss, rel=5e-7)
        assert step.grad_norm == pytest.approx(expected.grad_norm, rel=2e-6)
        assert step.loss != expected.loss
