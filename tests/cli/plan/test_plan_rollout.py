"""`trainyard plan rollout`: its document, its screen, and the refused inputs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.cli import one_screen
from tests.cli.schema_check import valid
from tests.refused import missing_values
from trainyard import api
from trainyard.cli.main import answer

BAD_INPUT = 2
SIZES = {
    "--machine": "h100", "--devices": "16", "--prompts": "64", "--samples": "8", "--prompt-tokens": "256",
    "--response-tokens": "1000",
}  # fmt: skip


def rollout(model: str = "llama3-8b", *words: str, **changes: str) -> list[str]:
    """The command's words; a keyword replaces an option of `SIZES`."""
    options = SIZES | {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    return ["plan", "rollout", model, *(word for option in options.items() for word in option), *words]


def planned(capsys: pytest.CaptureFixture[str], *words: str, **changes: str) -> dict[str, Any]:
    assert answer(rollout("llama3-8b", *words, "--json", **changes)) == 0
    return valid("rollout", capsys.readouterr().out)


def mode_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(mode for mode in document["modes"] if mode["name"] == name)


def test_document_has_the_modes_fastest_first_and_their_parts_sum(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys)
    assert {mode["name"] for mode in document["modes"]} == {"colocated", "disaggregated", "one-step-off"}
    steps = [mode["step_ns"] for mode in document["modes"]]
    assert steps == sorted(steps)
    for mode in document["modes"]:
        assert sum(part["ns"] for part in mode["parts"]) == mode["step_ns"]
        assert mode["low_ns"] < mode["step_ns"] < mode["high_ns"]
        assert mode["tokens_per_s"] == pytest.approx(64 * 8 * 1256 / (mode["step_ns"] / 1e9))
    assert document["calibrated"] is False
    assert document["framework"] == "megatron"
    assert document["workload"]["max_response_tokens"] == 2000


def test_disaggregated_modes_divide_whole_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, devices="32")
    for name in ("disaggregated", "one-step-off"):
        mode = mode_of(document, name)
        assert mode["generation"]["devices"] % 8 == mode["training"]["devices"] % 8 == 0
        assert mode["generation"]["devices"] + mode["training"]["devices"] == 32
    assert mode_of(document, "colocated")["generation"]["devices"] == 32
    chosen = planned(capsys, devices="32", generation_devices="24")
    assert mode_of(chosen, "one-step-off")["training"]["devices"] == 8


def test_fixed_axes_train_batch_and_engine_options_apply(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, "--fix", "tp=2", train_batch="128", generation_tp="2", max_num_seqs="32")
    mode = mode_of(document, "colocated")
    assert mode["training"]["job"]["layout"]["tp"] == 2
    assert mode["training"]["updates"] == 4
    assert mode["generation"]["tp"] == 2
    assert mode["generation"]["concurrent"] == 32


def test_without_log_probs_the_part_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    parts = mode_of(planned(capsys, "--no-old-log-probs", "--no-reference"), "colocated")["parts"]
    assert {part["name"]: part["ns"] for part in parts}["log_probs"] == 0


def test_screen_fits_and_states_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(rollout(devices="64", response_tokens="8000", samples="64", prompts="256")) == 0
    text = capsys.readouterr().out
    one_screen.check(text)
    assert "Not calibrated" in text
    assert "left out at this width" not in text


def test_each_constant_has_a_line_and_its_sources_are_listed_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert answer(rollout("llama3-8b", "--full")) == 0
    table = capsys.readouterr().out.partition("Assumed")[2].partition("\n\n")[0]
    assert table.count("NVIDIA-NeMo/Megatron-Bridge") == 1
    assert missing_values(table, "FlashMLA", "weight_bandwidth", "cache_bandwidth") == []
    for row in (r"matmul +0\.\d+ +hopper-megatron, fitted to \d+ of \d+", r"kernel_s +[\d.e-]+ s +\w+"):
        assert re.search(rf"^{row} *$", table, re.MULTILINE)


def test_ranks_without_a_replica_are_not_busy(capsys: pytest.CaptureFixture[str]) -> None:
    mode = mode_of(planned(capsys, prompts="1", samples="1", response_tokens="100", generation_tp="1"), "colocated")
    assert mode["generation"]["replicas"] == 1
    generates, *others = (part["ns"] for part in mode["parts"][:3])
    assert mode["busy_share"] == pytest.approx((generates / 16 + sum(others)) / mode["step_ns"])


def test_a_cluster_that_nodes_do_not_divide_has_the_colocated_mode_only(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, devices="12")
    assert document["modes"][0]["name"] == "colocated"
    for mode in document["modes"][1:]:
        assert mode["step_ns"] is None
        assert mode["reason"].startswith("12 devices are not two or more whole nodes of 8")
    assert answer(rollout(devices="12")) == 0
    assert "Disaggregated, one step off: 12 devices" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (rollout(max_response_tokens="999"), "less than the mean length"),
        (rollout(samples="0"), "--samples 0 must be at least 1"),
        (rollout(prompts="999999999999"), "samples a step"),
        (rollout(generation_devices="5"), "Pass --generation-devices 8."),
        (rollout(generation_devices="16"), "Pass --generation-devices 8."),
        (rollout(devices="64", generation_devices="12"), "a multiple of 8 from 8 to 56"),
        (rollout(devices="12", generation_devices="8"), "Pass --devices with a multiple of 8 from 16"),
        (rollout(devices="8", generation_devices="4"), "Pass --devices with a multiple of 8 from 16"),
        (rollout(machine="tpu-v5e", devices="64", generation_devices="32"), "Leave out --generation-devices"),
        (rollout(max_num_seqs="0"), "--max-num-seqs 0"),
        (rollout(memory_share="1.5"), "--memory-share 1.5"),
        (rollout(memory_share="0.01"), "does not fit for generation at any tp"),
        (rollout(generation_tp="3"), "cannot be divided over tp 3"),
        (rollout(generation_tp="3"), "1, 2, 4, 8, 16 can be used"),
        (rollout(memory_share="0.01"), "a larger --memory-share"),
        (rollout(train_batch="7"), "does not divide"),
        (rollout("llama3-405b", devices="8"), "llama3-405b fits on 8 devices in none"),
        (rollout("flux1-dev"), "Pass a decoder"),
        (rollout("nemotron-h-8b"), "state-space layers"),
        (rollout(**{"for": "verl"}), "there is no framework 'verl'"),
        (rollout(machine="h1000000"), "there is no machine"),
        (rollout(machine="h100:8,a100:8"), "machines of one kind"),
        (rollout(response_tokens="100000000000"), "tokens a sequence"),
    ],
)
def test_bad_input_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(words) == BAD_INPUT
    assert message in " ".join(capsys.readouterr().err.split())


def test_fixed_axes_without_a_layout_are_to_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(rollout("llama3-8b", "--fix", "tp=3", "--fix", "pp=2")) == BAD_INPUT
    assert missing_values(capsys.readouterr().err, "32 heads % tp 3", "Leave out --fix tp") == []
    assert answer(rollout("llama3-8b", "--fix", "pp=2", memory_share="0.01")) == BAD_INPUT
    assert "--fix" not in capsys.readouterr().err


def test_equal_lengths_idle_devices_and_other_frameworks_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(capsys)["notes"] == []
    (note,) = planned(capsys, max_response_tokens="1000")["notes"]
    assert missing_values(note, "1,000 tokens", "--length-cv 0.6") == []
    assert planned(capsys, max_response_tokens="1000", length_cv="0")["notes"] == []
    split = planned(capsys, devices="64", generation_devices="56", generation_tp="16")
    (note,) = split["notes"]  # 64 devices, those of the colocated mode, are four replicas
    assert missing_values(note, "8 of 56 devices", "3 replicas", "48") == []
    (note,) = planned(capsys, machine="tpu-v5e", devices="64")["notes"]
    assert missing_values(note, "Megatron Core does not run on Google TPU v5e") == []
    assert answer(rollout(machine="tpu-v5e", devices="64")) == 0
    assert note in " ".join(capsys.readouterr().out.split())


def test_named_degrees_and_memory_share_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(rollout(generation_tp="3")) == BAD_INPUT
    assert "1, 2, 4, 8, 16" in capsys.readouterr().err
    assert planned(capsys, generation_tp="4")["modes"][0]["step_ns"] > 0
    assert answer(rollout(memory_share="0.01")) == BAD_INPUT
    least = re.search(r"--memory-share \((0\.\d+) or more\)", capsys.readouterr().err)
    assert least
    assert planned(capsys, memory_share=least[1])["modes"][0]["step_ns"] > 0
    assert answer(rollout(memory_share=f"{float(least[1]) - 0.01:.2f}")) == BAD_INPUT


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": "0"}, {"max_num_seqs": "0"}, {"memory_share": "1.5"}, {"length_cv": "11"}, {"generation_tp": "3"},
        {"generation_devices": "16"}, {"devices": "8", "generation_devices": "8"}, {"train_batch": "7"},
    ],
)  # fmt: skip
def test_every_refusal_has_a_next_step(changes: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(rollout(**changes)) == BAD_INPUT
    message, _, next_step = capsys.readouterr().err.rstrip().partition("\n")
    assert message
    assert next_step.strip().endswith(".")


def test_library_returns_the_same_plan(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys)
    result = api.plan_rollout(
        "llama3-8b", machine="h100", devices=16, prompts=64, samples=8, prompt_tokens=256, response_tokens=1000
    )
    assert result.best.step_ns == document["modes"][0]["step_ns"]


def test_long_steps_are_in_hours_and_fit_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--prompts", "512", "--samples", "16", "--prompt-tokens", "512", "--response-tokens", "1000000")
    assert answer(["plan", "rollout", "llama3-8b", "--machine", "h100", "--devices", "64", *words]) == 0
    shown = capsys.readouterr().out
    assert missing_values(shown, "Hours", "h per step", "transfer", "tokens/s", "disaggregated") == []
    assert "…" not in shown
