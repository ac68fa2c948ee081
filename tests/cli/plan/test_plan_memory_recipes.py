"""`trainyard plan` with settings that save memory: offloaded activations, updates in the backward pass, and Muon."""

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


IN_BACKWARD = (*TORCHTITAN, "--optimizer-in-backward")


def test_updates_in_backward_have_one_micro_batch(capsys: pytest.CaptureFixture[str]) -> None:
    document = plans(capsys, *DENSE, "--for", "torchtitan", "--optimizer-in-backward")
    for choice in document["choices"]:
        layout, recipe = choice["plan"]["job"]["layout"], choice["plan"]["job"]["recipe"]
        ranks = layout.get("dp_replicate", 1) * layout.get("dp_shard", 1)
        assert ranks * recipe.get("micro_batch_size", 1) == 64
        assert layout.get("pp", 1) == 1 < layout.get("dp_shard", 1) * layout.get("cp", 1)


def test_check_reads_updates_in_backward(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    words = tuple("micro_batch_size=2" if word == "micro_batch_size=1" else word for word in TORCHTITAN)
    usual = plans(capsys, *words)
    planned = plans(capsys, *words, "--optimizer-in-backward", "--out", str(path))
    assert first_plan(planned)["ledger"]["wall_ns"] == first_plan(usual)["ledger"]["wall_ns"]
    assert first_plan(planned)["memory"]["gradient"] < first_plan(usual)["memory"]["gradient"]
    (sentence,) = planned["outside_settings"]
    assert missing_values(sentence, "[optimizer] early_step_in_backward = true") == []
    text = path.read_text("utf-8") + "\n[optimizer]\nearly_step_in_backward = true\n"
    path.write_text(text, "utf-8")
    checked = plans(capsys, "check", str(path), "--machine", "h200", "--devices", "32")
    assert first_plan(checked)["memory"] == first_plan(planned)["memory"]
    assert checked.get("differing_settings", []) == []
    path.write_text(text.replace("\n[training]", "\n[training]\nmax_norm = 1.0"), "utf-8")
    (clipped,) = plans(capsys, "check", str(path), "--machine", "h200", "--devices", "32")["differing_settings"]
    assert missing_values(clipped, "training.max_norm") == []
    # Two micro-batches on a rank would be two updates.
    path.write_text(text.replace("local_batch_size = 2", "local_batch_size = 1"), "utf-8")
    assert answer(["plan", "check", str(path), "--machine", "h200", "--devices", "32"]) != 0
    assert missing_values(capsys.readouterr().err, "optimizer.early_step_in_backward", "2") == []


def test_check_reads_muon(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.args"
    planned = plans(capsys, *MEGATRON, "--optimizer", "muon", "--out", str(path))
    entries = {(entry["account"], entry["phase"]) for entry in first_plan(planned)["ledger"]["entries"]}
    assert ("compute/matmul", "optimizer") in entries
    (sentence,) = planned["outside_settings"]
    assert missing_values(sentence, "--optimizer dist_muon", "--use-distributed-optimizer") == []
    text = path.read_text("utf-8").replace("--use-distributed-optimizer\n", "--optimizer dist_muon\n")
    words = ("check", str(path), "--machine", "h200", "--devices", "32")
    path.write_text(text, "utf-8")
    checked = plans(capsys, *words)
    assert first_plan(checked)["ledger"]["wall_ns"] == first_plan(planned)["ledger"]["wall_ns"]
    assert first_plan(checked)["memory"] == first_plan(planned)["memory"]
    # Later versions name it differently; without a distributed optimizer, each rank has the whole state.
    path.write_text(text.replace("dist_muon", "muon --use-distributed-optimizer"), "utf-8")
    assert first_plan(plans(capsys, *words)) == first_plan(checked)
    path.write_text(text.replace("dist_muon", "muon --muon-num-ns-steps 7"), "utf-8")
    whole = first_plan(plans(capsys, *words))
    assert whole["memory"]["optimizer_state"] > first_plan(checked)["memory"]["optimizer_state"]
    assert whole["ledger"]["wall_ns"] > first_plan(checked)["ledger"]["wall_ns"]
    path.write_text(f"{text}--use-precision-aware-optimizer\n", "utf-8")
    assert answer(["plan", *words]) != 0
    assert missing_values(capsys.readouterr().err, "--optimizer dist_muon", "--use-precision-aware-optimizer") == []


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ((*DENSE, "--optimizer", "muon"), ("--optimizer muon", "trainyard")),
        ((*DENSE, "--for", "torchtitan", "--optimizer", "muon"), ("--optimizer muon", "torchtitan")),
        ((*MEGATRON, "--optimizer", "muon", "--moments-dtype", "bfloat16"), ("muon", "--moments-dtype bfloat16")),
        ((*MEGATRON, "--optimizer", "muon", "--fine-tune", "lora"), ("--optimizer muon",)),
        ((*MEGATRON, "--optimizer", "muon", "--fix", "offload=1"), ("--optimizer muon", "offload")),
        ((*DENSE, "--optimizer-in-backward"), ("--optimizer-in-backward", "trainyard")),
        ((*DENSE, "--for", "megatron", "--optimizer-in-backward"), ("--optimizer-in-backward", "megatron")),
        (IN_BACKWARD, ("torchtitan", "micro-batch")),
        ((*DENSE, "--for", "torchtitan", "--fix", "pp=2", "--optimizer-in-backward"), ("torchtitan", "pipeline")),
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
