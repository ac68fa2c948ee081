"""Axes fixed by `plan --fix` in the document of plans and in the sentences that compare layouts."""

import json
from pathlib import Path

import pytest

from trainyard.cli.main import answer

CLUSTER = ("--machine", "h100", "--devices", "8", "--batch", "64", "--seq-len", "4096")
FIX = ("--fix", "pp=2", "--fix", "schedule=1f1b", "--fix", "dtype=float8")
FIXED = {"pp": 2, "schedule": "1f1b", "dtype": "float8"}


def test_the_document_has_the_fixed_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", "llama3-8b", *CLUSTER, *FIX, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fixed"] == FIXED
    assert answer(["plan", "llama3-8b", *CLUSTER, "--json"]) == 0
    assert "fixed" not in json.loads(capsys.readouterr().out)


def test_the_document_of_a_mixed_cluster_has_the_fixed_values(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--machine", "h100:8,a100:8", "--batch", "64", "--seq-len", "4096", "--fix", "tp=8")
    assert answer(["plan", "llama3-8b", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fixed"] == {"tp": 8}


def test_a_checked_configuration_is_compared_with_layouts_that_have_the_fixed_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.toml"
    assert answer(["plan", "llama3-8b", *CLUSTER, "--out", str(job)]) == 0
    fixed = ("--machine", "h100", "--fix", "tp=8")
    capsys.readouterr()
    assert answer(["plan", "check", str(job), *fixed]) == 0
    assert "layout with tp = 8 that fits" in " ".join(capsys.readouterr().out.split())
    assert answer(["plan", "check", str(job), *fixed, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fixed"] == {"tp": 8}
