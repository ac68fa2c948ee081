"""Compute dtypes of frameworks and machines."""

from __future__ import annotations

import pytest

from tests.refused import code_of, missing_values
from trainyard.cli.main import answer
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.train.rules import recipe_rules


def test_planned_dtypes_of_our_own_runner_are_those_it_trains() -> None:
    assert FRAMEWORKS["trainyard"].dtypes == recipe_rules.DTYPES


@pytest.mark.parametrize(
    ("framework", "dtype", "values"),
    [
        ("trainyard", "float4", ["trainyard run", "float4", "float8", "--for megatron"]),
        ("torchtitan", "float16", ["torchtitan", "float16", "--for megatron or deepspeed"]),
    ],
)
def test_dtype_that_a_framework_lacks_is_refused_with_a_framework_that_has_it(
    framework: str, dtype: str, values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("tiny", "--machine", "b200", "--devices", "8", "--batch", "64", "--seq-len", "128")
    assert answer(["plan", *arguments, "--for", framework, "--fix", f"dtype={dtype}"]) == 2
    error = capsys.readouterr().err
    assert code_of(error) == "bad-job"
    assert missing_values(error, *values) == []
    assert answer(["plan", *arguments, "--for", "megatron", "--fix", f"dtype={dtype}"]) == 0
