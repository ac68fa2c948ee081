"""Updates during the backward pass: the gradients of one unit of FSDP at a time, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.predict.test_plan import MODELS, ROWS, WHERE, single_case
from trainyard import machine
from trainyard.api.plan_request import read_request
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs import cases
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.memory import framework_memory
from trainyard.predict.search.layout_cost import LayoutCost, cost_job
from trainyard.predict.time import step
from trainyard.recipe import Recipe


@given(st.sampled_from(list(MODELS.values())), ROWS)
def test_gradients_of_a_unit_need_no_more_memory_than_all(model: Model, row: dict[str, int]) -> None:
    after = single_case(model, row)
    during = replace(after, updates_in_backward=cases.column(1))
    for first in (True, False):
        usual, freed = (framework_memory.of_stage(case, first) for case in (after, during))
        assert 0 <= freed.gradients[0] <= usual.gradients[0]
        assert freed._replace(gradients=usual.gradients) == usual
    assert framework_memory.memory(during).total[0] <= framework_memory.memory(after).total[0]
    assert step.step(during, WHERE, Constants()).wall == step.step(after, WHERE, Constants()).wall


def on_8_devices(model: str, **columns: float) -> LayoutCost:
    job_model = read_request(model, None, None, None).model
    assert isinstance(job_model, Model)
    recipe = Recipe(seq_len=8192, tokens_per_step=8192 * 8, dtype="bfloat16", activation_checkpoint="full")
    job = Job(name="m", model=job_model, layout=Layout(dp_shard=8), recipe=recipe)
    framework = FRAMEWORKS["torchtitan"]
    return cost_job(job, machine.load("h200"), framework._replace(keeps=framework.keeps._replace(columns=columns)))


@pytest.mark.parametrize(
    ("model", "largest"),
    [
        ("llama3-8b", 128256 * 4096),  # the head; a layer has 218,112,000 weights
        ("llama3-70b", 128256 * 8192),  # a layer has 855,654,400
        # A layer: queries and output, keys and values, two norms, 8 experts of three matrices, the router.
        ("mixtral-8x7b", 2 * 4096**2 + 2 * 4096 * 1024 + 2 * 4096 + 8 * 3 * 4096 * 14336 + 8 * 4096),
    ],
)
def test_gradients_of_the_largest_unit(model: str, largest: int) -> None:
    """By hand: float32 gradients of the largest unit, of which each of 8 ranks has an eighth."""
    usual, freed = on_8_devices(model), on_8_devices(model, updates_in_backward=1.0)
    assert freed.plan.memory["gradient"] == largest * 4 // 8 < usual.plan.memory["gradient"]
