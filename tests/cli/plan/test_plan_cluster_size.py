"""A machine file without a link between nodes is planned for at most one node."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.refused import code_of, missing_values
from trainyard import api, machine
from trainyard.cli.main import answer
from trainyard.errors import BadJob

BAD_INPUT = 2
TINY = ("--batch", "64", "--seq-len", "128")
ROLLOUT = ("--prompts", "64", "--samples", "4", "--prompt-tokens", "128", "--response-tokens", "128")
WITHOUT_LINK = [name for name in machine.known() if machine.load(name).inter_node is None]


@pytest.fixture
def one_node(tmp_path: Path) -> str:
    """The file of H100s without a link between nodes."""
    text = machine.known()["h100"].read_text("utf-8").replace('name = "h100"', 'name = "one-node"')
    path = tmp_path / "one-node.toml"
    path.write_text(re.sub(r"\[inter_node\]\n(.+\n)+", "", text), "utf-8")
    return str(path)


def scaled_points(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    assert answer(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["scaling"]["strong"]


@pytest.mark.parametrize("name", WITHOUT_LINK)
def test_more_devices_than_a_node_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    per_node = machine.load(name).per_node
    assert answer(["plan", "tiny", "--machine", name, "--devices", str(2 * per_node), *TINY]) == BAD_INPUT
    message = capsys.readouterr().err
    assert missing_values(message, name, f"{per_node:,}", f"{2 * per_node:,}", "[inter_node]") == []


def test_a_link_between_nodes_allows_more_devices(one_node: str) -> None:
    words = ("tiny", "--devices", "16", "--for", "megatron", *TINY)
    assert answer(["plan", *words, "--machine", one_node]) == BAD_INPUT
    assert answer(["plan", *words, "--machine", "h100"]) == 0


def test_scaling_ends_at_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    points = scaled_points(capsys, "tiny", "--machine", "tpu-v5e", "--devices", "128", "--batch", "1024",
                           "--seq-len", "128", "--tokens", "1e9")  # fmt: skip
    assert [point["devices"] for point in points if point["point"]] == [16, 32, 64, 128, 256]
    assert all(missing_values(str(point["reason"]), "tpu-v5e", "256") == [] for point in points if not point["point"])


@pytest.mark.parametrize("model", ["llama3-405b", "deepseek-v3"])
def test_no_more_devices_than_a_node_are_suggested(
    model: str, one_node: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--machine", one_node, "--batch", "64", "--seq-len", "512")
    assert answer(["plan", model, *words, "--for", "megatron"]) == BAD_INPUT
    message = capsys.readouterr().err
    assert code_of(message) == "bad-job"
    assert "devices would be enough" not in message


def test_check_of_a_configuration_beyond_the_node_is_refused(
    one_node: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "ds_config.json"
    config.write_text('{"train_batch_size": 64, "zero_optimization": {"stage": 3}, "fp16": {"enabled": true}}')
    words = ("check", str(config), "--model", "tiny", "--machine", one_node, "--seq-len", "128", "--devices")
    assert answer(["plan", *words, "8"]) == 0
    assert answer(["plan", *words, "16"]) == BAD_INPUT
    assert missing_values(capsys.readouterr().err, "one-node", "8", "16", "[inter_node]") == []


def test_rollout_beyond_the_node_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "rollout", "tiny", "--machine", "tpu-v5e", *ROLLOUT, "--devices", "512")
    assert answer(list(words)) == BAD_INPUT
    assert missing_values(capsys.readouterr().err, "tpu-v5e", "256", "512", "[inter_node]") == []


def test_designs_name_the_training_that_is_beyond_the_node() -> None:
    result = api.compare_designs(["llama3-8b", "deepseek-v3"], machine="tpu-v5e", changes=["matmul=2"])
    fits, too_large = result.trainings
    assert fits.step_ns
    assert not fits.reason
    assert missing_values(too_large.reason, "tpu-v5e", "256", "2,048") == []


def test_api_refuses_more_devices_than_a_node() -> None:
    with pytest.raises(BadJob) as caught:
        api.plan("tiny", machine="tpu-v5e", devices=1024, batch=1024, seq_len=128)
    assert missing_values(str(caught.value), "tpu-v5e", "256", "1,024") == []
