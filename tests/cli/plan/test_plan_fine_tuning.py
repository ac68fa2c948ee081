"""`trainyard plan --fine-tune`: its flags, its screen, its document and its launch files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli import one_screen
from tests.refused import code_of, missing_values
from trainyard import api
from trainyard.cli.main import answer
from trainyard.errors import UnknownName
from trainyard.report.plans.plans_view import view_of_plans

CLUSTER = ("--machine", "h100", "--devices", "8", "--batch", "64", "--seq-len", "4096")


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    """The document of `plan`, and its messages."""
    assert answer(["plan", *words, "--json"]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


@pytest.mark.parametrize(
    "words",
    [
        ("--fine-tune", "lora"),
        ("--fine-tune", "lora", "--for", "megatron", "--padding", "0.25"),
        ("--fine-tune", "qlora", "--lora-targets", "attention", "--lora-rank", "64", "--padding", "0.25"),
        ("--fine-tune", "sft", "--for", "megatron", "--padding", "0.25"),
        ("--fine-tune", "lora", "--tokens", "1e9"),
    ],
    ids=" ".join,
)
def test_output_is_one_screen(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", "llama3-70b", *CLUSTER, *words]) == 0
    one_screen.check(capsys.readouterr().out)


def test_document_has_the_settings_and_trained_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--fine-tune", "qlora", "--lora-rank", "8", "--lora-targets", "mlp", "--padding", "0.5")
    document, _ = planned(capsys, "llama3-8b", *CLUSTER, *words)
    assert document["fine_tuning"] == {"method": "qlora", "rank": 8, "targets": "mlp", "padding": 0.5}
    assert document["model"]["trained_parameters"] == 32 * 3 * 8 * (4096 + 14336)
    assert document["framework"] == "deepspeed"
    assert not any(choice["plan"]["calibrated"] for choice in document["choices"])


def test_screen_has_the_share_of_trained_parameters_and_padding(capsys: pytest.CaptureFixture[str]) -> None:
    document, _ = planned(capsys, "llama3-8b", *CLUSTER, "--fine-tune", "lora", "--padding", "0.25")
    assert answer(["plan", "llama3-8b", *CLUSTER, "--fine-tune", "lora", "--padding", "0.25"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    rate = document["choices"][0]["bill"]["tokens_per_s"] / 8
    for value in ("0.52 %", "41.9 M", "rank 16", "25 % padding", f"{rate:,.0f}", f"{0.75 * rate:,.0f}"):
        assert value in text, value


def test_supervised_fine_tuning_is_predicted_like_training(capsys: pytest.CaptureFixture[str]) -> None:
    plain, _ = planned(capsys, "llama3-8b", *CLUSTER)
    tuned, _ = planned(capsys, "llama3-8b", *CLUSTER, "--fine-tune", "sft")
    assert tuned.pop("fine_tuning") == {"method": "sft", "rank": 0, "targets": "all", "padding": None}
    assert tuned.pop("notes")
    assert "notes" not in plain
    assert tuned == plain


def test_adapters_are_planned_for_deepspeed_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    default, replaced = planned(capsys, "llama3-8b", *CLUSTER, "--fine-tune", "lora")
    named, chosen = planned(capsys, "llama3-8b", *CLUSTER, "--fine-tune", "lora", "--for", "deepspeed")
    assert default["choices"] == named["choices"]
    assert "DeepSpeed" in replaced
    assert "DeepSpeed" not in chosen


@pytest.mark.parametrize(
    ("framework", "names"),
    [
        ("deepspeed", ("LoraConfig(r=32)", "q_proj", "down_proj")),
        ("megatron", ("LoRA(dim=32)", "linear_qkv", "linear_fc2")),
    ],
)
def test_launch_file_comes_with_notes_on_adapters(
    framework: str, names: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "launch"
    words = ("--fine-tune", "lora", "--lora-rank", "32", "--for", framework, "--out", str(path))
    assert answer(["plan", "llama3-8b", *CLUSTER, *words]) == 0
    messages, notes = capsys.readouterr().err, (tmp_path / "launch.notes.txt").read_text()
    for name in names:
        assert name in messages
        assert name in notes
    model = ("--model", "llama3-8b", "--seq-len", "4096") if framework == "deepspeed" else ()
    document, _ = planned(
        capsys, "check", str(path), *CLUSTER[:4], *model, "--fine-tune", "lora", "--lora-rank", "32"
    )  # fmt: skip
    configured = document["choices"][0]
    assert document["as_configured"]
    assert configured["plan"]["ledger"] == document["choices"][1]["plan"]["ledger"]
    assert document["model"]["trained_parameters"] > 40e6


@pytest.mark.parametrize(
    ("words", "code", "values"),
    [
        (("llama3-8b", "--fine-tune", "lora", "--lora-rank", "0"), "bad-input", ["--lora-rank 0", "4,096"]),
        (("llama3-8b", "--fine-tune", "lora", "--lora-rank", "4097"), "bad-input", ["--lora-rank 4097", "4,096"]),
        (("llama3-8b", "--lora-rank", "16"), "bad-input", ["--lora-rank 16", "--fine-tune lora"]),
        (("llama3-8b", "--fine-tune", "sft", "--lora-rank", "16"), "bad-input", ["--lora-rank 16"]),
        (("llama3-8b", "--lora-targets", "mlp"), "bad-input", ["--lora-targets mlp"]),
        (("llama3-8b", "--padding", "0.1"), "bad-input", ["--padding 0.1", "--fine-tune"]),
        (("llama3-8b", "--fine-tune", "sft", "--padding", "1"), "bad-input", ["--padding 1", "less than 1"]),
        (("llama3-8b", "--fine-tune", "sft", "--padding", "nan"), "bad-input", ["--padding nan"]),
        (("llama3-8b", "--fine-tune", "qlora", "--fix", "dtype=float8"), "bad-job", ["float8", "bfloat16, float16"]),
        (("llama3-8b", "--fine-tune", "qlora", "--for", "megatron"), "bad-input", ["NF4", "--for deepspeed"]),
        (("llama3-8b", "--fine-tune", "lora", "--for", "torchtitan"), "bad-input", ["torchtitan", "--for megatron"]),
        (("llama3-8b", "--fine-tune", "lora", "--for", "trainyard"), "bad-input", ["trainyard run", "--for deepspeed"]),
        (("vit-l-16", "--fine-tune", "lora"), "bad-input", ["vit-l-16"]),
        (("mixtral-8x7b", "--fine-tune", "lora"), "bad-input", ["8 experts", "--lora-targets attention"]),
        (("mixtral-8x7b", "--fine-tune", "qlora"), "bad-input", ["NF4", "experts"]),
        (("deepseek-v3", "--fine-tune", "lora"), "bad-input", ["latent attention"]),
        (("nemotron-h-8b", "--fine-tune", "lora"), "bad-input", ["state-space"]),
    ],
)
def test_bad_input_is_refused(
    words: tuple[str, ...], code: str, values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    seq_len = () if words[0].startswith("vit") else CLUSTER[6:]
    assert answer(["plan", *words, *CLUSTER[:6], *seq_len]) == 2
    captured = capsys.readouterr()
    assert code_of(captured.err) == code
    assert missing_values(captured.err, *values) == []
    assert not captured.out


def test_adapters_are_not_predicted_on_a_mixed_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--machine", "h100:8,a100:8", *CLUSTER[4:], "--fine-tune")
    assert answer(["plan", "llama3-8b", *words, "lora"]) == 2
    assert missing_values(capsys.readouterr().err, "h100:8,a100:8", "--fine-tune sft") == []


def test_our_own_configuration_cannot_be_checked_with_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", "check", "examples/tiny.toml", "--machine", "h100", "--fine-tune", "lora"]) == 2
    assert missing_values(capsys.readouterr().err, "trainyard run", "--for deepspeed") == []


def test_library_refuses_unknown_names() -> None:
    for name, value in (("method", "dora"), ("lora_targets", "head")):
        tuning = api.FineTune(**{"method": "lora", name: value})  # type: ignore[arg-type]
        with pytest.raises(UnknownName, match=value):
            api.plan("llama3-8b", machine="h100", devices=8, batch=64, seq_len=4096, fine_tune=tuning)


def test_library_plans_attention_adapters_of_experts_models() -> None:
    tuning = api.FineTune(method="lora", lora_targets="attention")
    plans = api.plan("mixtral-8x7b", machine="h100", devices=8, batch=64, seq_len=4096, fine_tune=tuning)
    assert plans.model is not None
    assert plans.model.trained_parameters == 32 * 16 * (2 * 8192 + 2 * (4096 + 1024))
    assert not plans.best.plan.calibrated
    assert "fine-tuning lora, rank 16, attention" in view_of_plans(plans).chips
