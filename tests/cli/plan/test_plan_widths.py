"""Tables of `plan` on a terminal of 80 columns: all columns of a pipeline, and parts that sum to their total."""

import re

import pytest

from trainyard.cli.main import answer

GPT3 = ("gpt3-175b", "--machine", "a100", "--devices", "1024", "--batch", "1536", "--seq-len", "2048")
LLAMA = ("llama3-8b", "--machine", "h100", "--devices", "8", "--batch", "64", "--seq-len", "8192")
EXPERTS = ("mixtral-8x7b", "--machine", "h100", "--devices", "64", "--batch", "512", "--seq-len", "4096")
LONG = (
    "llama3-405b",
    "--machine",
    "a100",
    "--devices",
    "512",
    "--batch",
    "4096",
    "--seq-len",
    "8192",
    "--fix",
    "pp=16",
)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert answer(["plan", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("words", "unit"), [(GPT3, "s"), (LONG, "s"), ((*LLAMA, "--fix", "pp=4"), "ms")])
def test_the_table_of_ranks_has_all_columns(
    words: tuple[str, ...], unit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, *words, "--for", "megatron", "--full").splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("Ranks "))
    assert lines[first].split()[-7:] == ["forward", "backward", "busy", "send/recv", "warm-up", "steady", "drain"]
    assert any(line.startswith(f"In {unit}. Layers") for line in lines)
    times = [[float(cell.replace(",", "")) for cell in line.split()[-5:]] for line in lines[first + 1 : first + 4]]
    assert len({round(sum(row), -1) for row in times}) == 1  # all ranks take the same time


@pytest.mark.parametrize("words", [GPT3, LLAMA, EXPERTS])
def test_parts_that_do_not_sum_are_marked_as_rounded(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, *words, "--for", "megatron")
    for title, last, column in (
        ("Predicted ledger, mean over ranks", "Step", -2),
        ("Memory of the fullest rank", "Reserved,", -1),
    ):
        table = re.search(rf"^{title}(.*?)^{last}[^\n]*", text, re.DOTALL | re.MULTILINE)
        assert table
        rows = table[0].splitlines()[1:]
        values = [float(row.split()[column].replace(",", "")) for row in rows]
        digits = 2 if last == "Step" else 1
        assert (round(sum(values[:-1]), digits) != values[-1]) == ("(parts rounded)" in rows[-1])


def test_the_ledger_of_our_own_runner_is_marked_as_rounded(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Step (parts rounded) " in printed(capsys, *LLAMA)


@pytest.mark.parametrize("flags", [(), ("--full",), ("--tokens", "1e12")])
def test_lines_have_no_spaces_at_their_ends(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *LLAMA, *flags)
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert "\n\n" in text
