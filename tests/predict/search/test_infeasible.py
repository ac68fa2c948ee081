"""Messages on layouts that do not fit or divide: ranks and devices of machines that have several ranks per device."""

import pytest

from tests.refused import missing_values
from trainyard.cli.main import answer
from trainyard.machine import load
from trainyard.predict.search.infeasible import unit_of_ranks


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The error of a plan that has no layout, in one line."""
    assert answer(["plan", *words, "--batch", "64", "--seq-len", "8192"]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_the_suggested_number_of_devices_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(capsys, "llama3-70b", "--machine", "trn1", "--devices", "16")
    assert missing_values(error, "32 ranks", "64 devices would be enough") == []
    enough = ["plan", "llama3-70b", "--machine", "trn1", "--devices", "64", "--batch", "64", "--seq-len", "8192"]
    assert answer(enough) == 0


def test_the_suggested_parts_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(capsys, "llama3-70b", "--machine", "trn1:8,trn2:4")
    assert missing_values(error, "trn1:8", "trn2:4", "each rank lacks", "trn1:32,trn2:16 would be enough") == []


@pytest.mark.parametrize(("machine", "count"), [("trn1", "32 ranks"), ("h100", "16 devices")])
def test_remainders_are_those_of_ranks(machine: str, count: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(capsys, "llama3-8b", "--machine", machine, "--devices", "16", "--fix", "pp=3")
    assert missing_values(error, f"no layout of {count}", f"{count} % pp 3") == []


def test_uneven_parts_need_a_multiple_of_their_devices(capsys: pytest.CaptureFixture[str]) -> None:
    # 63 devices have 126 ranks: at most 32 stages need at least 4 ranks, those of 2 devices, in each.
    error = refusal(capsys, "llama3-8b", "--machine", "trn1:31,trn1:32")
    assert missing_values(error, "63 stages", "multiple of 2 devices") == []


@pytest.mark.parametrize(
    ("names", "unit"), [(("h100", "a100"), "devices"), (("trn2",), "ranks"), (("h100", "trn1"), "ranks")]
)
def test_the_unit_is_ranks_if_any_device_has_several(names: tuple[str, ...], unit: str) -> None:
    assert unit_of_ranks(map(load, names)) == unit
