"""Bisection of modules and operations on a training with a wrong kernel, or a wrong lowering of the compiler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainyard.errors import BadInput, NotEnoughEvidence

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from trainyard import api  # noqa: E402
from trainyard.numerics.record.record_command import record_command  # noqa: E402
from trainyard.numerics.record_state import RecordOptions  # noqa: E402

SCRIPT = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("swapped_training.py"))]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("record") / "a"
    record_command(SCRIPT, folder, RecordOptions(steps=(0,), replicas=2))
    return folder


def test_an_operation_with_a_wrong_kernel_is_named(record: Path, tmp_path: Path) -> None:
    said: list[str] = []
    result = api.bisect_numerics(record, [*SCRIPT, "--kernel"], tmp_path, swap="float64", say=said.append)
    assert [(cause.kind, cause.name) for cause in result.causes] == [("operation", "aten.silu of Network.gate")]
    assert (result.exit_code, result.swap) == (0, "float64")
    assert result.first is not None
    assert result.first.kind == "value"
    assert len(said) == len(result.trials) <= 10
    said.clear()
    again = api.bisect_numerics(record, [*SCRIPT, "--kernel"], tmp_path, swap="float64", say=said.append)
    assert again == result  # from the trials in the folder
    lines = (tmp_path / "trials.jsonl").read_text().splitlines()
    assert len(lines) == len(result.trials)


def test_without_a_difference_there_is_no_cause(record: Path, tmp_path: Path) -> None:
    with pytest.raises(NotEnoughEvidence):
        api.bisect_numerics(record, SCRIPT, tmp_path, swap="float64")


def test_variables_are_not_swapped(record: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        api.bisect_numerics(record, SCRIPT, tmp_path, swap="eager", variables={"OMP_NUM_THREADS": ("1", "2")})


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["whole", "in-place", "blocks"])
def test_a_module_that_is_compiled_wrongly_is_named(record: Path, tmp_path: Path, way: str) -> None:
    """Each block shows the fault, compiled alone; the first of them is named, not one of the layers in it."""
    command = [*SCRIPT, "--lowering", "--compile", way]
    result = api.bisect_numerics(record, command, tmp_path, swap="eager")
    assert [(cause.kind, cause.name) for cause in result.causes] == [("module", "Network.blocks.0")]


@pytest.mark.nightly
def test_a_fault_that_is_not_of_the_compiler_is_not_searched_there(record: Path, tmp_path: Path) -> None:
    with pytest.raises(NotEnoughEvidence):
        api.bisect_numerics(record, [*SCRIPT, "--kernel", "--compile", "whole"], tmp_path, swap="eager")
