"""`trainyard numerics kernels` on trainings with right and wrong kernels."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli import one_screen
from tests.cli.schema_check import valid
from trainyard.cli.main import answer
from trainyard.errors import BadInput, CommandFailed

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from trainyard import api  # noqa: E402
from trainyard.numerics.kernels.check_result import KernelCheck  # noqa: E402

SCRIPT = Path(__file__).with_name("checked_training.py")
COMMAND = [sys.executable, "-W", "ignore", str(SCRIPT)]
TWO_RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LINE = next(number for number, text in enumerate(SCRIPT.read_text().splitlines(), 1) if "functional.silu(" in text)


def names(check: KernelCheck) -> list[tuple[str, str, str]]:
    return [(each.module, each.operation, each.phase) for each in check.exceeding]


def test_a_wrong_kernel_is_named_with_module_and_line() -> None:
    check = api.check_kernels([*COMMAND, "--kernel"])
    assert names(check) == [("Decoder.block", "aten.silu", "forward")]
    (operation,) = check.exceeding
    assert check.operations[0] == operation
    assert check.exit_code == 1
    assert operation.calls == 2
    assert operation.ratio > 100
    worst = operation.worst
    assert worst is not None
    assert worst.value is not None
    assert worst.reference is not None
    assert worst.location.endswith(f"checked_training.py:{LINE}")
    assert worst.value / worst.reference == pytest.approx(1.001, rel=1e-5)
    assert [(tensor.shape, tensor.dtype) for tensor in worst.inputs] == [((4, 12, 32), "float32")]
    assert len(worst.index) == 3
    phases = {operation.phase for operation in check.operations}
    assert phases == {"forward", "backward", "optimizer"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--bfloat16"],
        ["--bfloat16", "--optimizer", "fused"],
        ["--model", "classifier", "--optimizer", "fused"],
        ["--model", "classifier", "--channels-last", "--optimizer", "single"],
        ["--model", "classifier", "--channels-last", "--bfloat16"],
    ],
    ids=" ".join,
)
def test_right_trainings_raise_no_alarm(options: list[str]) -> None:
    check = api.check_kernels([*COMMAND, *options], most_calls=20)
    assert names(check) == []
    assert check.exit_code == 0
    assert len(check.operations) > 30


@pytest.mark.slow
def test_two_ranks_are_merged() -> None:
    check = api.check_kernels([*TWO_RANKS, str(SCRIPT), "--kernel"], steps="0")
    assert names(check) == [("Decoder.block", "aten.silu", "forward")]
    assert (check.ranks, check.steps) == (2, (0,))
    assert check.exceeding[0].calls == 2
    assert check.unchecked_reasons["custom operations and collectives"] > 0


def test_a_training_in_float64_cannot_be_checked() -> None:
    check = api.check_kernels([*COMMAND, "--float64", "--steps", "1"])
    assert check.exit_code == 3
    assert check.unchecked_reasons["computed in float64"] > 10


def test_calls_and_elements_are_limited() -> None:
    check = api.check_kernels([*COMMAND, "--steps", "1"], most_calls=1, most_elements=500)
    assert all(operation.calls == 1 for operation in check.operations)
    assert check.unchecked_reasons["more calls than --calls"] > 0
    assert check.unchecked_reasons["more elements than --elements"] > 0


def test_commands_that_cannot_be_checked() -> None:
    with pytest.raises(CommandFailed):
        api.check_kernels([*COMMAND, "--fail", "--steps", "1"])
    with pytest.raises(BadInput):
        api.check_kernels([*COMMAND, "--steps", "1"], steps="7-8")
    with pytest.raises(BadInput):
        api.check_kernels([sys.executable, "-c", "pass"])
    with pytest.raises(BadInput):
        api.check_kernels(["no-such-command"])


@pytest.mark.slow
def test_the_command_prints_json_and_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["numerics", "kernels", "--steps", "0", "--calls", "1"]
    assert answer([*words, "--json", "--", *COMMAND, "--kernel", "--steps", "1"]) == 1
    document = valid("numerics-kernels", capsys.readouterr().out)
    assert document["schema"] == "trainyard/numerics-kernels/1"
    assert document["operations"][0]["operation"] == "aten.silu"
    assert answer([*words, "--", *COMMAND, "--kernel", "--steps", "1"]) == 1
    printed = capsys.readouterr().out
    one_screen.check(printed)
    assert f"checked_training.py:{LINE}" in printed
    assert answer([*words, "--full", "--", *COMMAND, "--steps", "1"]) == 0
    full = capsys.readouterr().out
    assert "aten.native_layer_norm_backward" in full
    assert len(full.splitlines()) > len(printed.splitlines())
    assert answer([*words, "--", "no-such-command"]) == 2
    assert answer([*words, "--", *COMMAND, "--fail", "--steps", "1"]) == 4


def test_a_training_that_cannot_be_checked_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["numerics", "kernels", "--", *COMMAND, "--float64", "--steps", "1"]) == 3
    assert "Traceback" not in capsys.readouterr().err
