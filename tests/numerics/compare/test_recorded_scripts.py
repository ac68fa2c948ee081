"""Comparisons of real scripts, recorded by the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.numerics.compare.compare_records import compare_records

pytestmark = [pytest.mark.torch, pytest.mark.slow]
TRAINYARD = Path(sys.executable).with_name("trainyard")
SCRIPT = Path(__file__).with_name("small_decoder.py")


def record(folder: Path, replicas: int, *options: str) -> Path:
    command = [
        str(TRAINYARD),
        "numerics",
        "record",
        "--out",
        str(folder),
        "--steps",
        "0-1",
        "--replicas",
        str(replicas),
    ]
    script = [sys.executable, str(SCRIPT), *options]
    done = subprocess.run([*command, "--", *script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return record(tmp_path_factory.mktemp("reference") / "a", 3)


@pytest.mark.parametrize("options", [("--compile",), ("--dtype", "bfloat16")], ids=" ".join)
def test_compiled_and_bfloat16_training_raise_no_alarm(
    reference: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    comparison = compare_records(reference, record(tmp_path / "b", 0, *options))
    assert comparison.verdict == "same"
    assert comparison.counts.within_rounding + comparison.counts.identical > 100


@pytest.mark.parametrize(
    ("fault", "phase", "module", "operations"),
    [
        ("epsilon", "forward", "layers.1.mlp_norm", {"aten.native_layer_norm"}),
        ("scale", "forward", "layers.1.attention", {"aten.masked_fill", "aten._softmax", "aten.bmm"}),
        ("sign", "backward", "layers.1", {"aten.gelu_backward", "aten.neg", "aten.clone"}),
    ],
)
def test_fault_of_a_script_is_named(
    reference: Path, tmp_path: Path, fault: str, phase: str, module: str, operations: set[str]
) -> None:
    comparison = compare_records(reference, record(tmp_path / "b", 0, "--fault", fault))
    assert comparison.verdict == "different"
    assert comparison.first is not None
    tensor = comparison.first.tensor
    assert (tensor.step, tensor.phase) == (0, phase)
    assert tensor.module.endswith(module)
    assert tensor.operation in operations
    causes = [(cause.side, cause.operation, cause.module) for cause in comparison.first.causes]
    if fault == "scale":
        assert [operation.split()[0] for operation in comparison.first.only_a][-1] == "aten.mul"
        assert causes == [("A", "aten.mul", tensor.module)]
    if fault == "sign":
        assert ("B", "aten.neg", tensor.module) in causes or tensor.operation == "aten.neg"
    if phase == "forward":
        assert "small_decoder.py:" in tensor.location_a
