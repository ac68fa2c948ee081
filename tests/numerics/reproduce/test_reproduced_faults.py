"""Published bugs, rebuilt in small trainings, are shown by scripts of their operations alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]
pytest.importorskip("torch")

from trainyard import api  # noqa: E402
from validation.numerics.faults import FAULTS  # noqa: E402


@pytest.mark.parametrize(
    ("id", "ranks", "text"),
    [
        # the optimizer of B does not have the parameter, whose module B knows by another name
        ("parameters_never_updated", 1, "aten.addcdiv_.default"),
        # integers that enter a division come from other labels on each side
        pytest.param("mean_of_means", 1, "aten.ne.Scalar", marks=pytest.mark.nightly),
        # B lacks an all-reduce of its script
        ("tensor_parallel_backward", 2, "dist.all_reduce(v"),
        # B lacks the all-reduce of buckets of DistributedDataParallel; replicas of its gradients differ
        pytest.param("ddp_hooks_lost", 2, "dist.all_reduce(v", marks=pytest.mark.nightly),
        # sizes on one rank differ by a missing all-reduce of an integer
        pytest.param("all_to_all_mismatch", 2, "dist.ReduceOp.MAX", marks=pytest.mark.nightly),
        # parts of a buffer that later operations read
        pytest.param("gradient_buffer_race", 1, "aten.slice.Tensor", marks=pytest.mark.nightly),
        # bits of a weight that are changed through another dtype
        pytest.param("flipped_weight_bit", 1, "bitwise_xor_", marks=pytest.mark.nightly),
        # the result of both sides is a number, and that of B is not finite
        pytest.param("zero_tokens", 1, "aten.clamp.default", marks=pytest.mark.nightly),
    ],
)
def test_a_script_of_the_operations_shows_the_fault(id: str, ranks: int, text: str, tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.id == id)
    a, b = tmp_path / "a", tmp_path / "b"
    api.record_numerics(fault.command(sys.executable, faulty=False), a, replicas=2)
    api.record_numerics(fault.command(sys.executable, faulty=True), b, replicas=0)
    result = api.reproduce_numerics(a, b, tmp_path / "script.py", rerun=True)
    assert result.shows_fault, result.text
    assert result.ranks == ranks
    assert text in result.text
    assert result.error_a is not None
    assert result.error_a <= result.limit
    assert result.error_b is None or result.error_b > result.limit
