"""Numbers on the command line of `trainyard plan` with a suffix, a unit or in another notation."""

from __future__ import annotations

import pytest

from tests.refused import code_of, missing_values
from trainyard.cli.main import answer

BAD_INPUT = 2
TINY = ("tiny", "--machine", "h100", "--batch", "64", "--seq-len", "128")
ROLLOUT = ("rollout", "llama3-8b", "--machine", "h100", "--samples", "1", "--prompt-tokens", "8",
           "--response-tokens", "8", "--prompts")  # fmt: skip


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ((*TINY, "--power-cap", "0.5kW"), "500"),
        ((*TINY, "--power-cap", "700W"), "700"),
        ((*TINY, "--mtbf-hours", "50k"), "50000"),
        ((*TINY, "--restart-minutes", "5m"), "5"),
        ((*TINY, "--storage-bandwidth", "50GB/s"), "50"),
        ((*TINY, "--padding", "20%"), "0.2"),
        ((*TINY, "--tokens", "15T"), "1.5e+13"),
        ((*TINY, "--devices", "0x10"), "16"),
        ((*TINY, "--pod-nodes", "1,024"), "1024"),
        (("measure", *TINY, "--top", "2k"), "2000"),
        ((*ROLLOUT, "1k"), "1000"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else value,
)
def test_message_has_the_number_to_write(
    words: tuple[str, ...], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", *words]) == BAD_INPUT
    message = capsys.readouterr().err
    assert code_of(message) == "bad-usage"
    assert missing_values(message, words[-2], repr(words[-1]), f"Write {number}") == []


@pytest.mark.parametrize(
    ("flag", "text"),
    [("--devices", "1_000x"), ("--devices", "８"), ("--power-cap", "0,5"), ("--power-cap", "0x10"),
     ("--restart-minutes", "1h"), ("--checkpoint-seconds", "5m"), ("--tokens", "１e12"), ("--oversubscription", "4:1")],
)  # fmt: skip
def test_message_has_the_notation_of_an_unclear_number(
    flag: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", *TINY, flag, text]) == BAD_INPUT
    assert missing_values(capsys.readouterr().err, flag, repr(text), "decimal digits") == []


@pytest.mark.parametrize(("flag", "text"), [("--devices", "1_6"), ("--tokens", "1_000_000"), ("--tokens", "1e6")])
def test_notations_of_python_are_read(flag: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", *TINY, flag, text]) == 0
    capsys.readouterr()
