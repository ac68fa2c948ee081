"""Counts of one, and small numbers, in the output of `trainyard plan`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.models.test_models import LLAMA
from trainyard.cli.main import answer

TINY = {
    "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": 256,
}  # fmt: skip
ONE_RANK = ("--machine", "h100", "--devices", "1", "--batch", "1")
ONE_LAYOUT = ("--fix", "micro_batch_size=1", "--fix", "activation_checkpoint=none")


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, **TINY}), "utf-8")
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    answer(["plan", *words])
    return " ".join("".join(capsys.readouterr()).split())


def plurals_of_one(text: str) -> list[str]:
    return re.findall(r"(?<![\w.,/-])1 (?!fits)[a-z-]+s\b(?!/)", text)


@pytest.mark.parametrize("budget", [(), ("--tokens", "1e6")])
def test_counts_of_one_are_singular(budget: tuple[str, ...], tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, tiny, *ONE_RANK, "--seq-len", "1", *ONE_LAYOUT, "--full", *budget)
    assert "The only layout that fits" in text
    assert "1 layout divides" in text
    assert plurals_of_one(text) == []


def test_rollout_of_one_response_is_singular(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    step = ("--prompts", "1", "--samples", "1", "--prompt-tokens", "1", "--response-tokens", "1")
    text = printed(capsys, "rollout", tiny, *ONE_RANK[:4], *step)
    assert "1 device is not" in text
    assert plurals_of_one(text) == []
    refused = printed(capsys, "rollout", tiny, *ONE_RANK[:4], *step, "--train-batch", "2")
    assert "1 prompt x 1 sample" in refused
    assert plurals_of_one(refused) == []


def test_few_parameters_and_images_per_second_are_not_rounded_to_nothing(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "4,760 parameters" in printed(capsys, tiny, *ONE_RANK, "--seq-len", "8")
    text = printed(capsys, "flux1-dev", "--machine", "h100", "--devices", "64", "--batch", "64")
    throughput = re.search(r"([\d.,]+) images/s/device", text)
    assert throughput
    assert 0.1 < float(throughput[1]) < 10
    assert "." in throughput[1]
