"""`trainyard plan --oversubscription`: a network of switches in place of the ideal one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.refused import code_of, missing_values
from trainyard.cli.main import answer

BAD_INPUT = 2
EXPERTS = ("mixtral-8x7b", "--machine", "h100", "--devices", "64", "--batch", "128", "--seq-len", "4096", "--for",
           "megatron", "--fix", "ep=8", "--fix", "tp=8", "--fix", "pp=1", "--fix", "cp=1")  # fmt: skip
"""Experts on 8 consecutive devices; the ranks that shard weights are on all 8 nodes."""
TINY = ("tiny", "--machine", "h100", "--devices", "4", "--batch", "64", "--seq-len", "128")


def plans(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert answer(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def fastest_ns(document: dict[str, Any]) -> int:
    return min(choice["plan"]["ledger"]["wall_ns"] for choice in document["choices"])


def test_oversubscription_slows_collectives_that_leave_their_pod(capsys: pytest.CaptureFixture[str]) -> None:
    ideal, full = plans(capsys, *EXPERTS), plans(capsys, *EXPERTS, "--oversubscription", "1", "--pod-nodes", "2")
    shared = plans(capsys, *EXPERTS, "--oversubscription", "16", "--pod-nodes", "2")
    assert fastest_ns(full) == fastest_ns(ideal) < fastest_ns(shared)
    (note,) = set(shared["notes"]) - set(ideal["notes"])
    assert missing_values(note, "2", "16:1") == []


def test_flags_equal_a_machine_file_with_the_same_level(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from trainyard import machine

    path = tmp_path / "mine.toml"
    level = '[[fabric]]\nname = "leaf"\nnodes = 2\n'
    ratio = 'oversubscription = { value = 16, unit = "ratio", source = "a test" }\n'
    path.write_text(f"{machine.known()['h100'].read_text('utf-8')}\n{level}{ratio}", "utf-8")
    words = [str(path) if word == "h100" else word for word in EXPERTS]
    flags = ("--oversubscription", "16", "--pod-nodes", "2")
    assert fastest_ns(plans(capsys, *words)) == fastest_ns(plans(capsys, *EXPERTS, *flags))
    # The flags replace the levels of the file.
    assert fastest_ns(plans(capsys, *words, "--oversubscription", "1", "--pod-nodes", "2")) == fastest_ns(
        plans(capsys, *EXPERTS)
    )


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("--oversubscription", "4"), ["--oversubscription 4", "--pod-nodes"]),
        (("--pod-nodes", "16"), ["--pod-nodes 16", "--oversubscription"]),
        (("--oversubscription", "0.5", "--pod-nodes", "16"), ["0.5", "1"]),
        (("--oversubscription", "nan", "--pod-nodes", "16"), ["nan"]),
        (("--oversubscription", "1e5", "--pod-nodes", "16"), ["100000", "1000"]),
        (("--oversubscription", "4", "--pod-nodes", "1"), ["1", "2"]),
        (("--machine", "h100:8,a100:8", "--oversubscription", "4", "--pod-nodes", "2"), ["h100:8,a100:8"]),
        (
            ("--machine", "tpu-v5p", "--oversubscription", "4", "--pod-nodes", "2"),
            ["tpu-v5p", "inter_node", "Leave out --oversubscription"],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_impossible_networks_are_bad_input(
    words: tuple[str, ...], values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    on_h100 = () if "--machine" in words else ("--machine", "h100")
    assert answer(["plan", "tiny", *on_h100, *TINY[3:], *words]) == BAD_INPUT
    message = capsys.readouterr().err
    assert code_of(message) == "bad-input"
    assert missing_values(message, *values) == []


def test_check_of_a_configuration_takes_the_network(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "ds_config.json"
    config.write_text(
        '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}'
    )
    words = ("check", str(config), "--model", "llama3-8b", "--machine", "h100", "--devices", "64", "--seq-len", "4096")
    ideal, shared = plans(capsys, *words), plans(capsys, *words, "--oversubscription", "64", "--pod-nodes", "4")
    steps = [document["choices"][0]["plan"]["ledger"]["wall_ns"] for document in (ideal, shared)]
    assert steps[0] < steps[1]
    assert any("64:1" in note for note in shared["notes"])
