"""The modes of `trainyard plan`, and the size of their default output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli import one_screen
from trainyard.cli.main import answer

CLUSTER = ("--machine", "h100", "--devices", "64", "--batch", "256", "--seq-len", "8192")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert answer(["plan", *words]) == 0
    return capsys.readouterr().out


@pytest.fixture
def configuration(tmp_path: Path) -> str:
    """Megatron arguments of a layout of llama3-8b."""
    path = tmp_path / "run.args"
    assert answer(["plan", "llama3-8b", *CLUSTER, "--for", "megatron", "--out", str(path)]) == 0
    return str(path)


@pytest.mark.parametrize(
    "words",
    [
        ("llama3-70b", *CLUSTER),
        ("llama3-8b", *CLUSTER, "--tokens", "1e12"),
        ("llama3-8b", "--machine", "h100:8,a100:16", *CLUSTER[4:], "--tokens", "1e12"),
        ("list",),
        ("list", "models"),
        ("list", "machines"),
    ],
    ids=" ".join,
)
def test_default_output_is_one_screen(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    one_screen.check(printed(capsys, *words))


@pytest.mark.parametrize("columns", ["40", "20"])
@pytest.mark.parametrize("full", [(), ("--full",)])
def test_narrow_output_keeps_layouts_and_numbers(
    columns: str, full: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = printed(capsys, "tiny", *CLUSTER[:4], "--batch", "64", "--seq-len", "128", *full)
    assert "dp_replicate" in text.replace("\n", "")
    assert printed(capsys, "list", "machines", *full)


def test_checked_configuration_is_compared_with_the_fastest(
    configuration: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    text = printed(capsys, "check", configuration, "--machine", "h100", "--devices", "64")
    one_screen.check(text)
    assert text.count("As configured") == 2
    document = json.loads(printed(capsys, "check", configuration, "--machine", "h100", "--devices", "64", "--json"))
    configured, *others = (choice["plan"]["ledger"]["wall_ns"] for choice in document["choices"])
    assert ("No other searched layout that fits is faster" in " ".join(text.split())) == (configured <= min(others))


def test_full_output_has_every_layout_and_interval(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, "llama3-8b", *CLUSTER, "--json"))
    text = printed(capsys, "llama3-8b", *CLUSTER, "--full")
    for choice in document["choices"]:
        low, high = (f"{choice['plan'][bound] / 1e9:.2f}" for bound in ("low", "high"))
        assert f"{low} to {high}" in text
    assert f"{document['choices'][0]['plan']['ledger']['wall_ns']:,} ns exactly" in text


def test_interval_without_similar_measurements_is_not_calibrated(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("llama3-8b", "--machine", "tpu-v6e", "--devices", "64", *CLUSTER[4:])
    assert "not calibrated" in " ".join(printed(capsys, *words).split())
    assert "not calibrated" not in printed(capsys, "llama3-8b", *CLUSTER)


@pytest.mark.parametrize(
    ("words", "replacement"),
    [
        (("--check", "job.toml"), "trainyard plan check FILE"),
        (("tiny", "--check"), "trainyard plan check FILE"),
        (("--list",), "trainyard plan list"),
    ],
)
def test_old_option_names_its_mode(
    words: tuple[str, ...], replacement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", *words]) == 2
    assert replacement in capsys.readouterr().err


def test_list_has_sizes_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, "list", "--json"))
    model = document["models"]["deepseek-v3"]
    assert (model["parameters"], model["active"], model["layers"], model["hidden_size"]) == (671e9, 37e9, 61, 7168)
    assert document["models"]["dlrm-dcnv2"]["planned"] is False
    assert all(model["parameters"] and model["source"] for model in document["models"].values())
    assert document["machines"]["h100"]["device"]["peak"]["bfloat16"]["source"]
    assert document["machines"]["h100"]["device"]["peak"]["bfloat16"]["value"] == 989e12
    machines = json.loads(printed(capsys, "list", "machines", "--json"))
    assert machines["machines"] == document["machines"]
    assert not machines["models"]


def test_placed_layers_fit_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """The head of Llama 3 8B takes as long as two layers, so that the stages of a pipeline get unequal layers."""
    command = ["plan", "llama3-8b", "--machine", "h100", "--devices", "64", "--batch", "256", "--seq-len", "8192",
             "--for", "megatron", "--fix", "pp=4", "--fix", "interleave=1"]  # fmt: skip
    assert answer(command) == 0
    text = capsys.readouterr().out
    one_screen.check(text)
    assert re.search(r"ends 0/-2 \(stages of [\d x,]+ layers\)", " ".join(text.split()))
    assert "ends 0/-2: the first stage has 0 layers fewer" in text
    assert answer([*command, "--full"]) == 0
    full = capsys.readouterr().out
    for part in (
        "ends 0/-2: the first stage has 0 layers fewer",
        "Causes of the pipeline bubble",
        "Head and loss on the last stage",
        "In ms. Layers: of each stage.",
    ):
        assert part in full
    assert answer([*command, "--tokens", "1e12"]) == 0
    before, _, alternatives = capsys.readouterr().out.partition("Alternatives")
    assert "ends 0/-2" in " ".join(before.split())
    assert re.search(r"ends\s+0/-\d", alternatives)
    assert re.search(r"ends 0/-\d: the first stage has 0 layers fewer", alternatives)
    assert answer([*command, "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)
    bubble_ns = sum(
        entry["ns"]
        for entry in plans["choices"][0]["plan"]["ledger"]["entries"]
        if entry["account"].startswith("bubble")
    )
    assert sum(plans["bubble"]["causes"].values()) == bubble_ns > 0
    layers = [sum(rank["layers"]) for rank in plans["bubble"]["ranks"]]
    assert sum(layers) == 32
    assert layers[-1] < layers[0]
