"""The vocabulary as each framework pads it, and sequences of any length."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from tests.refused import missing_values
from trainyard.cli.main import answer
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.configs import detect_format
from trainyard.predict.configs.config_keys import CommandArguments
from trainyard.predict.inputs import layout_space
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.inputs.padded_vocabulary import TO_MEGATRON_DIVISOR, TO_TP, UNEVEN

GPT3 = msgspec.convert(presets.load("gpt3-175b").model, Model)
STEP = ["--batch", "512", "--seq-len", "2048"]


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert answer(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("framework", "rows"), [("trainyard", 50_260), ("megatron", 50_688), ("torchtitan", 50_260), ("deepspeed", 50_260)]
)
def test_padded_rows_follow_the_framework(framework: str, rows: int) -> None:
    """gpt3-175b has 50,257 rows. Megatron: ceil(50,257 / (128 * 4)) * 512; the others: the largest part x 4."""
    runner = FRAMEWORKS[framework]
    wanted = PlannerInput(GPT3, 64, 8, 64, 2048, fixed={"tp": 4, "pp": 1, "micro_batch_size": 1})
    layouts = runner.layouts(wanted)
    assert len(layouts)
    assert set(layout_space.as_cases(wanted, layouts, runner.keeps).vocab.tolist()) == {rows}
    job_rows = {layout_space.job_of(wanted, layouts.row(row), runner.keeps).decoder.vocab for row in range(3)}
    assert job_rows == {rows if runner.keeps.vocabulary.in_model else 50_257}


def test_padding_of_no_rows() -> None:
    tp = np.array([1, 2, 8, 128])
    assert UNEVEN.padded(128_256, tp).tolist() == [128_256] * 4
    assert TO_MEGATRON_DIVISOR.padded(128_256, tp).tolist() == [128_256, 128_256, 129_024, 131_072]
    assert TO_TP.describe(128_256, 8, "us") == UNEVEN.describe(128_256, 8, "us") == ""


def test_odd_vocabulary_on_devices_of_two_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    plans = planned(capsys, "gpt3-175b", "--machine", "trn1", "--devices", "512", *STEP)
    notes = [note for note in plans["notes"] if "50,257" in note]  # type: ignore[union-attr]
    assert len(notes) == 1
    assert missing_values(notes[0], "50,260") == []


@pytest.mark.parametrize(
    ("argument", "rows"),
    [
        ("--padded-vocab-size 50259", 50_259),
        ("--vocab-size 50257", 50_688),
        ("--vocab-size 50257 --make-vocab-size-divisible-by 1", 50_260),
        ("--vocab-size 50688", 50_688),
    ],
)
def test_megatron_arguments_give_the_padded_rows(argument: str, rows: int) -> None:
    text = (
        "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --seq-length 128 --micro-batch-size 1 "
        f"--global-batch-size 8 --tensor-model-parallel-size 4 --bf16 --use-distributed-optimizer {argument}"
    )
    config = detect_format.read(text.encode(), "run.args", CommandArguments(devices=8))
    assert config.job.decoder.vocab == rows


@pytest.mark.parametrize("seq_len", [1, 17, 2047, 8191])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_any_length_without_cp_and_sp(framework: str, seq_len: int) -> None:
    model = msgspec.convert(presets.load("llama3-8b").model, Model)
    layouts = FRAMEWORKS[framework].layouts(PlannerInput(model, 8, 8, 8, seq_len))
    assert set(layouts.columns["cp"].tolist()) == {1}
    assert (set(layouts.columns["tp"].tolist()) == {1}) == (framework != "deepspeed")


@pytest.mark.parametrize(
    ("axis", "values"), [("tp=2", ["8,191 % (tp x cp 2) = 1"]), ("cp=2", ["8,191 % (2 x cp 2) = 3"])]
)
def test_fixed_axis_that_does_not_divide_the_sequence(
    axis: str, values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["llama3-8b", "--machine", "h100", "--devices", "8", "--batch", "8", "--seq-len", "8191", "--fix", axis]
    assert answer(["plan", *words]) == 2
    assert missing_values(" ".join(capsys.readouterr().err.split()), *values) == []
