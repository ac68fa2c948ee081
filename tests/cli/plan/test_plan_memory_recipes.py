"""`trainyard plan` with settings that save memory: offloaded activations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.plan.test_plan_fabric import plans
from tests.refused import code_of, missing_values
from trainyard.cli.main import answer

DENSE = ("llama3-8b", "--machine", "h200", "--devices", "32", "--batch", "64", "--seq-len", "4096")
PLAIN = (*DENSE, "--fix", "tp=1", "--fix", "pp=1", "--fix", "cp=1", "--fix", "micro_batch_size=1", "--fix",
         "dp_replicate=1")  # fmt: skip
MEGATRON = (*PLAIN, "--for", "megatron", "--fix", "zero=1", "--fix", "activation_checkpoint=none")
TORCHTITAN = (*PLAIN, "--for", "torchtitan", "--fix", "zero=3", "--fix", "activation_checkpoint=full")


def first_plan(document: dict[str, Any]) -> dict[str, Any]:
    return document["choices"][0]["plan"]


@pytest.mark.parametrize("words", [MEGATRON, TORCHTITAN], ids=["megatron", "torchtitan"])
def test_offloaded_activations_are_on_the_host(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    here, away = (plans(capsys, *words, *more)["choices"][0] for more in ((), ("--offload-activations", "16")))
    assert away["plan"]["memory"]["activation"] < here["plan"]["memory"]["activation"]
    assert away["plan"]["ledger"]["wall_ns"] > here["plan"]["ledger"]["wall_ns"]
    assert here.get("host_bytes", 0) == 0 < away["host_bytes"]


def test_a_search_with_offloaded_activations_has_layouts_that_support_them(capsys: pytest.CaptureFixture[str]) -> None:
    for framework, modes in (("megatron", {"none"}), ("torchtitan", {"none", "full"})):
        document = plans(capsys, *DENSE, "--for", framework, "--offload-activations", "16")
        jobs = [choice["plan"]["job"] for choice in document["choices"]]
        assert {job["layout"].get("pp", 1) for job in jobs} == {1}
        assert {job["recipe"].get("activation_checkpoint", "none") for job in jobs} <= modes


def test_check_reads_the_argument_that_notes_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.args"
    planned = plans(capsys, *MEGATRON, "--offload-activations", "16", "--out", str(path))
    (sentence,) = planned["outside_settings"]
    argument = "--cpu-offloading-num-layers 16"
    assert argument in sentence
    assert sentence in path.with_name("run.args.notes.txt").read_text("utf-8")
    path.write_text(f"{path.read_text('utf-8')}{argument}\n", "utf-8")
    checked = plans(capsys, "check", str(path), "--machine", "h200", "--devices", "32")
    assert first_plan(checked)["ledger"]["wall_ns"] == first_plan(planned)["ledger"]["wall_ns"]
    assert first_plan(checked)["memory"] == first_plan(planned)["memory"]


def test_check_refuses_options_that_a_file_contradicts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.args"
    recomputing = (*MEGATRON[:-1], "activation_checkpoint=full")
    plans(capsys, *recomputing, "--out", str(path))
    words = ("plan", "check", str(path), "--machine", "h200", "--devices", "32", "--json")
    assert answer([*words, "--offload-activations", "16"]) != 0
    error = capsys.readouterr().err
    assert missing_values(error, "--offload-activations", "full", str(path)) == []
    # Megatron refuses it too.
    path.write_text(f"{path.read_text('utf-8')}--cpu-offloading-num-layers 16\n", "utf-8")
    assert answer(list(words)) != 0
    assert missing_values(capsys.readouterr().err, "--cpu-offloading-num-layers 16", "--recompute-granularity") == []


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ((*DENSE, "--offload-activations", "16"), ("--offload-activations 16", "trainyard")),
        ((*DENSE, "--for", "deepspeed", "--offload-activations", "16"), ("--offload-activations 16", "deepspeed")),
        ((*MEGATRON, "--offload-activations", "32"), ("--offload-activations 32", "32 layers", "3 to 31")),
        ((*MEGATRON, "--offload-activations", "2"), ("--offload-activations 2", "3 to 31")),
        ((*DENSE, "--for", "megatron", "--fix", "pp=2", "--offload-activations", "16"), ("Megatron Core", "pipeline")),
        (
            (*MEGATRON[:2], "h800", *MEGATRON[3:], "--offload-activations", "16"),
            ("[host]",),
        ),
        (
            ("llama3-8b", "--machine", "h100:64,h200:64", "--batch", "512", "--seq-len", "4096",
             "--offload-activations", "16"),
            ("--offload-activations", "h100:64,h200:64"),
        ),
    ],
)  # fmt: skip
def test_settings_without_effect_are_refused(
    words: tuple[str, ...], values: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", *words]) != 0
    error = capsys.readouterr().err
    assert code_of(error) in ("bad-input", "bad-job")
    assert missing_values(error, *values) == []
