"""`trainyard plan` of models with few tokens in their vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.models.test_models import LLAMA
from tests.refused import code_of, missing_values
from trainyard.cli.main import answer

SMALL = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
         "num_key_value_heads": 2}  # fmt: skip
STEP = ("--machine", "h100", "--devices", "2", "--batch", "2", "--seq-len", "128")


def planned(tmp_path: Path, vocab: int, *words: str) -> int:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, **SMALL, "vocab_size": vocab}), "utf-8")
    return answer(["plan", str(path), *STEP, *words])


def test_one_token_is_refused_for_every_framework(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for framework in ("trainyard", "megatron"):
        assert planned(tmp_path, 1, "--for", framework) == 2
        error = capsys.readouterr().err
        assert code_of(error) == "bad-file"
        assert missing_values(error, "vocab", 1) == []
        assert "byte" not in error


def test_a_vocabulary_that_only_our_runner_refuses_is_planned_for_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned(tmp_path, 100) == 2
    assert missing_values(capsys.readouterr().err, "trainyard", "vocab", 100, "--for megatron") == []
    assert planned(tmp_path, 100, "--for", "megatron") == 0
