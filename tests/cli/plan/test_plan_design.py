"""`trainyard plan design`: gains of hypothetical machines, their prices, and the refused inputs."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.cli import one_screen
from tests.cli.schema_check import valid
from trainyard import api
from trainyard.cli.main import answer
from trainyard.predict.designs.machine_changes import CHANGES
from trainyard.report.plans.design_comparison import show_gain

BAD_INPUT = 2
TINY = ("--model", "tiny", "--batch", "64", "--seq-len", "512", "--devices", "16")
TOO_LARGE = ("--model", "llama3-405b", "--batch", "64", "--seq-len", "512", "--devices", "1")
TWO_CHANGES = ("--change", "matmul=2", "--change", "inter-node=2")


def design(*words: str) -> list[str]:
    return ["plan", "design", "--machine", "h100", *words]


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert answer(design(*words, "--json")) == 0
    return valid("designs", capsys.readouterr().out)


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in document["designs"]}


def test_speedups_are_ratios_of_steps_and_the_mean_is_geometric(capsys: pytest.CaptureFixture[str]) -> None:
    document = compared(capsys, "--model", "llama3-8b", "--model", "flux1-dev", *TWO_CHANGES)
    assert [row["name"] for row in document["designs"]] == ["matmul", "inter-node", "all"]
    for row in document["designs"]:
        for training, step in zip(document["trainings"], row["steps"], strict=True):
            assert step["speedup"] == pytest.approx(training["step_ns"] / step["step_ns"])
        speedups = [step["speedup"] for step in row["steps"]]
        assert row["mean_speedup"] == pytest.approx(prod(speedups) ** 0.5)
    rows = by_name(document)
    assert 1.5 < rows["matmul"]["mean_speedup"] < 2
    assert 1 < rows["inter-node"]["mean_speedup"] < 1.1
    assert rows["all"]["mean_speedup"] >= rows["matmul"]["mean_speedup"]


def test_default_changes_are_all_by_two(capsys: pytest.CaptureFixture[str]) -> None:
    rows = by_name(compared(capsys, *TINY))
    assert set(rows) == {*CHANGES, "all"}
    assert rows["all"]["factors"] == dict.fromkeys(CHANGES, 2.0)


def test_changes_that_are_no_gain_are_not_the_largest_gain(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(design(*TINY, "--change", "matmul=0.5")) == 0
    assert "largest gain" not in capsys.readouterr().out
    assert answer(design(*TINY, "--change", "matmul=0.5", "--change", "memory-bandwidth=2")) == 0
    assert "largest gain of one change: 2 x memory bandwidth" in " ".join(capsys.readouterr().out.split())


def test_picture_is_written_to_svg_files_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "designs.png"
    assert answer(design(*TINY, "--change", "matmul=2", "--out", str(picture))) == BAD_INPUT
    assert "designs.svg" in "".join(capsys.readouterr().err.split())
    assert not picture.exists()
    assert answer(design(*TINY, "--change", "matmul=2", "--out", str(tmp_path / "DESIGNS.SVG"))) == 0


def test_the_suggested_node_size_is_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(design(*TINY, "--change", "node-size=1.05")) == BAD_INPUT
    assert "--change node-size=1.125" in capsys.readouterr().err
    assert answer(design(*TINY, "--change", "node-size=1.125")) == 0


def test_unchanged_step_is_that_of_plan(capsys: pytest.CaptureFixture[str]) -> None:
    (training,) = compared(capsys, *TINY, "--change", "matmul=2")["trainings"]
    plans = api.plan("tiny", machine="h100", devices=16, batch=64, seq_len=512)
    assert training["step_ns"] == min(record.plan.ledger.wall_ns for record in plans.choices)


def test_price_gives_the_cost_per_token(capsys: pytest.CaptureFixture[str]) -> None:
    prices = ("--price-change", "matmul=40", "--price-change", "all=50")
    rows = by_name(compared(capsys, "--model", "llama3-8b", "--for", "megatron", *TWO_CHANGES, *prices))
    assert rows["matmul"]["mean_speedup"] > 1.5
    assert rows["matmul"]["cost_per_token"] == pytest.approx(1.4 / rows["matmul"]["mean_speedup"])
    assert rows["all"]["cost_per_token"] == pytest.approx(1.5 / rows["all"]["mean_speedup"])
    assert rows["inter-node"]["cost_per_token"] is None


def test_training_that_does_not_fit_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*TOO_LARGE, "--model", "tiny", "--change", "memory-capacity=2")
    document = compared(capsys, *words)
    large, small = document["trainings"]
    assert large["step_ns"] is None
    assert large["reason"]
    (row,) = document["designs"]
    assert row["steps"][0]["speedup"] is None
    assert row["mean_speedup"] == pytest.approx(row["steps"][1]["speedup"])
    assert small["step_ns"] > 0


def test_memory_that_becomes_too_small_leaves_the_mean_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "llama3-8b", "--devices", "8", "--batch", "8", "--change", "memory-capacity=0.01")
    (row,) = compared(capsys, *words)["designs"]
    assert row["mean_speedup"] is None
    assert row["steps"][0]["reason"]


@pytest.mark.parametrize(
    "words",
    [
        TOO_LARGE,
        ("--model", "no-such-model"),
        ("--model", "llama3-405b"),  # not in the suite, and without a batch
        (*TINY, "--change", "hbm=2"),
        (*TINY, "--change", "matmul"),
        (*TINY, "--change", "matmul=1000"),
        (*TINY, "--change", "intra-node=1"),
        (*TINY, "--change", "matmul=nan"),
        (*TINY, "--change", "matmul=2", "--change", "matmul=4"),
        (*TINY, "--change", "node-size=1.1"),
        (*TINY, "--change", "matmul=2", "--price-change", "latency=3"),
        (*TINY, "--change", "matmul=2", "--price-change", "matmul=-100"),
        (*TINY, "--for", "no-framework"),
        (*TINY, "--machine", "h100,a100"),
    ],
)
def test_bad_input_is_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(design(*words)) == BAD_INPUT
    out, err = capsys.readouterr()
    assert not out
    assert err.rstrip().partition("\n")[2], "a next step"


def test_machine_without_a_link_between_nodes_lacks_that_change(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "design", "--machine", "tpu-v5p", *TINY)
    assert answer([*words, "--json"]) == 0
    rows = by_name(valid("designs", capsys.readouterr().out))
    assert set(rows) == {*CHANGES, "all"} - {"inter-node"}
    assert answer([*words, "--change", "inter-node=2"]) == BAD_INPUT


def test_default_output_fits_one_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "designs.svg"
    assert answer(design("--for", "megatron", "--out", str(picture))) == 0
    shown = capsys.readouterr().out
    one_screen.check(shown)
    assert "flux1-dev: " in shown  # Megatron does not train it
    root = ElementTree.fromstring(picture.read_text("utf-8"))  # noqa: S314
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len(texts) == 2 + 5 + 9 * (1 + 5 + 1)
    assert texts.count("–") == 9


@pytest.mark.parametrize(
    ("speedup", "shown"),
    [(1.0, "0"), (1.004, "<1"), (1.0149, "1"), (1.72, "72"), (0.999, ">-1"), (0.5, "-50"), (None, "")],
)
def test_gains_have_whole_percents(speedup: float | None, shown: str) -> None:
    assert show_gain(speedup) == shown
