"""`trainyard plan check` of job files that trainyard does not train."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.refused import code_of, missing_values
from trainyard.cli.main import answer

_JOB = """
name = "small"
[model]
layers = 4
hidden_size = 128
ffn_hidden_size = 384
heads = 8
kv_heads = 4
head_dim = 16
{model}
[layout]
{layout}
[recipe]
seq_len = 128
tokens_per_step = 3072
{recipe}
"""
_EXPERTS = "experts = 8\ntop_k = 2\nmoe_ffn_hidden_size = 64"


@pytest.mark.parametrize(
    ("layout", "model", "recipe", "values"),
    [
        ("tp = 3", "", "", ("tp", 3, "heads 8", "1, 2, 4")),
        ("pp = 6", "", "schedule = 'gpipe'", ("$.layout", "pp 6", "4 layers")),
        ("cp = 3", "", "", ("cp = 3", "seq_len 128", "1, 2, 4, 8, 16, 32, 64")),
        ("dp_shard = 6\nep = 3", _EXPERTS, "", ("experts 8", "ep 3", "1, 2")),
        ("dp_shard = 5", "", "", ("$", "3,072", "data-parallel ranks 5")),
    ],
    ids=("heads", "layers", "sequence", "experts", "batch"),
)
def test_indivisible_layout_names_sizes_and_degrees(
    layout: str, model: str, recipe: str, values: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(_JOB.format(layout=layout, model=model, recipe=recipe), "utf-8")
    assert answer(["plan", "check", str(path), "--machine", "h100"]) == 2
    error = capsys.readouterr().err
    assert code_of(error) == "bad-job"
    assert missing_values(error, str(path), *values) == []
