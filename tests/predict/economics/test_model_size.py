"""Parameters and FLOPs per token of known models, and the size of a checkpoint."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.economics.model_size import checkpoint_bytes, measure_model
from trainyard.predict.inputs import cases
from trainyard.recipe import Recipe
from trainyard.workloads.ops import matrices

NAMES = [name for name in presets.known() if (preset := presets.load(name)).model and preset.parameters]


def job(name: str, **layout: Any) -> Job:
    model = msgspec.convert({"name": name, **(presets.load(name).model or {})}, Model)
    seq_len = 2048
    recipe = Recipe(seq_len=seq_len, tokens_per_step=64 * seq_len)
    return Job(name=name, model=model, layout=Layout(**layout), recipe=recipe)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_match_the_published_counts(name: str) -> None:
    """Some publishers leave the embedding out of the active parameters."""
    planned, preset = job(name), presets.load(name)
    size, embedding = measure_model(planned), planned.decoder.vocab * planned.decoder.hidden_size
    assert preset.parameters is not None
    assert size.parameters == pytest.approx(preset.parameters.value, rel=0.03)
    active = preset.active.value if preset.active else preset.parameters.value
    assert 0.95 * active < size.active_parameters < 1.03 * active + embedding


def test_llama_3_8b_has_its_exact_count() -> None:
    assert measure_model(job("llama3-8b")).parameters == 8_030_261_248


@pytest.mark.parametrize(
    ("name", "fields", "parameters"),
    [
        ("llama3-8b", {"bias": "all"}, 8_031_637_504),
        ("llama3-8b", {"bias": "qkv"}, 8_030_261_248 + 32 * (4096 + 2 * 1024)),
        ("qwen2.5-7b", {}, 7_615_616_512),
        ("qwen3-8b", {}, 8_190_735_360),
    ],
)
def test_parameters_include_biases_and_norms_of_attention(name: str, fields: dict[str, Any], parameters: int) -> None:
    """The counts of Qwen are those of its published weights."""
    planned = job(name)
    assert measure_model(replace(planned, model=replace(planned.decoder, **fields))).parameters == parameters


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b", "mixtral-8x7b", "tiny-mla", "tiny-moe"])
def test_parameters_are_those_of_the_workload(name: str) -> None:
    planned = job(name)
    assert measure_model(planned).parameters == matrices.parameters(planned.decoder)


def test_flops_per_token_are_six_per_active_parameter_and_attention() -> None:
    """Chowdhery et al. 2022, arXiv:2204.02311, appendix B: without the embedding, which has no product, and with half
    of the scores, which the causal mask leaves."""
    size = measure_model(job("llama3-8b"))
    multiplied = size.parameters - 128_256 * 4096
    scores = 6 * 32 * 4096 * 2048
    assert size.flops_per_token == pytest.approx(6 * multiplied + scores, rel=1e-3)


def test_size_does_not_depend_on_the_layout() -> None:
    assert measure_model(job("llama3-8b", tp=2, pp=4, dp_shard=8)) == measure_model(job("llama3-8b"))


def test_a_checkpoint_holds_weights_and_optimizer_state() -> None:
    """trainyard's own trainer keeps a weight and two moments, 4 bytes each."""
    on_one_rank = checkpoint_bytes(cases.of_jobs([job("llama3-8b")]))
    assert on_one_rank == pytest.approx(12 * 8_030_261_248, rel=1e-9)
    assert checkpoint_bytes(cases.of_jobs([job("llama3-8b", tp=2, pp=4, dp_shard=8)])) == on_one_rank
