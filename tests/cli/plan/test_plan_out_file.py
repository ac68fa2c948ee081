"""Files that `plan` and its modes write with --out: a file that exists is not replaced."""

import os
import stat
from pathlib import Path

import pytest

from tests.refused import code_of, missing_values
from trainyard.cli.main import answer

WORK = ("--machine", "h100", "--devices", "8", "--batch", "8", "--seq-len", "128")
COMMANDS = {
    "search": ("plan", "tiny", *WORK),
    "check": ("plan", "check", "tiny.toml", "--machine", "h100"),
    "design": ("plan", "design", "--model", "tiny", *WORK, "--change", "matmul=2"),
    "measure": ("plan", "measure", "tiny", *WORK),
}


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    assert answer([*COMMANDS["search"], "--out", "tiny.toml"]) == 0
    capsys.readouterr()
    out = tmp_path / "train.py"
    out.write_text("print('mine')\n")
    return out


@pytest.mark.parametrize("mode", COMMANDS)
def test_a_file_that_exists_is_not_replaced(mode: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer([*COMMANDS[mode], "--out", out.name]) == 2
    printed = capsys.readouterr().err
    assert code_of(printed) == "bad-input"
    assert missing_values(printed, "--out train.py") == []
    assert out.read_text() == "print('mine')\n"


def test_a_file_that_was_removed_is_written(out: Path) -> None:
    out.unlink()
    assert answer([*COMMANDS["search"], "--out", out.name]) == 0
    assert "mine" not in out.read_text()


def test_the_checked_file_is_not_replaced(out: Path) -> None:
    before = Path("tiny.toml").read_text()
    assert answer([*COMMANDS["check"], "--out", "tiny.toml"]) == 2
    assert Path("tiny.toml").read_text() == before


def test_a_device_is_written_to(out: Path) -> None:
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert answer([*COMMANDS["search"], "--out", os.devnull]) == 0
