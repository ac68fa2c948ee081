"""Odd words on the command line of `trainyard plan`: options given twice or without a value, and files that are not
regular."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.refused import code_of, missing_values, refused
from trainyard import api
from trainyard.cli.main import answer
from trainyard.errors import BadFile

BAD_INPUT = 2
TINY = ("tiny", "--machine", "h100", "--batch", "64", "--seq-len", "128")
ROLLOUT = ("rollout", "llama3-8b", "--machine", "h100", "--devices", "8", "--prompts", "8", "--samples", "1",
           "--prompt-tokens", "8", "--response-tokens", "8")  # fmt: skip


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ((*TINY, "--devices", "8", "--devices", "16"), ["--devices", 8, 16]),
        ((*TINY, "--machine=a100"), ["--machine", "h100", "a100"]),
        (("check", "x.toml", "--machine", "h100", "--seq-len", "8", "--seq-len", "16"), ["--seq-len", 8, 16]),
        (("measure", *TINY, "--rounds", "8", "--rounds", "16"), ["--rounds", 8, 16]),
        (("design", "--machine", "h100", "--machine", "a100"), ["--machine", "h100", "a100"]),
        ((*ROLLOUT, "--no-reference", "--reference"), ["--reference"]),
        ((*TINY, "--for", ""), ["--for"]),
        ((*TINY, "--for", " "), ["--for"]),
        ((*TINY, "--out="), ["--out"]),
        (("tiny", "--machine", ""), ["--machine"]),
        (("design", "--machine", "h100", "--change", ""), ["--change"]),
        ((*ROLLOUT, "--fix", ""), ["--fix"]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_repeated_and_empty_options_are_refused(
    words: tuple[str, ...], values: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", *words]) == BAD_INPUT
    message = capsys.readouterr().err
    assert code_of(message) == "bad-input"
    assert missing_values(message, *values) == []


def test_repeatable_and_equal_options_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--devices", "8", "--devices", "8", "--fix", "tp=1", "--fix", "pp=1", "--full", "--full")
    assert answer(["plan", *TINY, *words]) == 0
    assert "tiny on 8" in capsys.readouterr().out


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    """A pipe without a writer."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return str(path)


@pytest.mark.timeout(30)
def test_pipe_without_a_writer_is_refused_by_the_api(fifo: str) -> None:
    """The command copies pipes, which end or time out; the API reads regular files only."""
    with refused(BadFile, fifo):
        api.plan(fifo, machine="h100", batch=64, seq_len=128)
    with refused(BadFile, fifo):
        api.plan("tiny", machine=fifo, batch=64, seq_len=128)
    with refused(BadFile, fifo):
        api.plan("tiny", machine=f"h100:8,{fifo}:8", batch=64, seq_len=128)
    with refused(BadFile, fifo):
        api.check_plan(fifo, machine="h100")


@pytest.mark.timeout(30)
def test_command_that_waits_for_a_pipe_says_so(
    fifo: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINYARD_PIPE_TIMEOUT_S", "0.5")
    assert answer(["plan", "tiny", "--machine", fifo]) == BAD_INPUT
    waiting, *error = capsys.readouterr().err.splitlines()
    assert missing_values(waiting, fifo, "0.5") == []
    assert code_of("\n".join(error)) == "bad-file"
