"""Inputs of products in float8 that are kept for the backward pass: in one byte by Transformer Engine, in two by
torchao."""

from __future__ import annotations

from typing import Literal

import pytest

from trainyard import machine
from trainyard.api.plan_request import read_request
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.search.layout_cost import cost_job
from trainyard.recipe import Recipe

TOKENS = 8192


def activation_bytes(framework: str, model: str, dtype: Literal["bfloat16", "float8"]) -> int:
    job_model = read_request(model, None, None, None).model
    assert isinstance(job_model, Model)
    recipe = Recipe(seq_len=TOKENS, tokens_per_step=TOKENS * 8, dtype=dtype)
    job = Job(name="m", model=job_model, layout=Layout(dp_shard=8), recipe=recipe)
    return cost_job(job, machine.load("h200"), FRAMEWORKS[framework]).plan.memory["activation"]


@pytest.mark.parametrize(
    ("model", "saved_values"),
    [
        ("llama3-8b", 2 * 4096 + 14336),  # inputs of queries, keys and values, of the MLP, and of its last matrix
        ("mixtral-8x7b", 2 * 4096 + 2 * (4096 + 14336)),  # tokens have two experts, and the MLP's input is also routed
    ],
)
def test_inputs_of_products_in_float8(model: str, saved_values: int) -> None:
    """By hand, in 32 layers: Transformer Engine saves a byte of each value, torchao none."""
    saved = {
        framework: activation_bytes(framework, model, "bfloat16") - activation_bytes(framework, model, "float8")
        for framework in ("megatron", "torchtitan")
    }
    assert saved == {"megatron": 32 * TOKENS * saved_values, "torchtitan": 0}
