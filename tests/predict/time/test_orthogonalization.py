"""Muon: one moment in place of two, whole matrices on each rank, and the products of its iterations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.predict.test_plan import MODELS, ROWS, WHERE, single_case, spent
from trainyard import machine
from trainyard.api.plan_request import read_request
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs import cases
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.training_settings import TrainingSettings, with_settings
from trainyard.predict.memory import framework_memory
from trainyard.predict.search.layout_cost import LayoutCost, cost_job, make_cases
from trainyard.predict.time import step
from trainyard.predict.time.orthogonalization import largest_matrix, orthogonalization_seconds
from trainyard.recipe import Recipe

FREE = Constants(matmul=1, rows=0, columns=0, depth=0, kernel_s=0, bandwidth=1e6)
"""Products at the peak of the device."""
TABLE = 128256 * 4096


def with_muon(case: Cases) -> Cases:
    columns = {"muon_iterations": 5, "extra_table_state_bytes": 4, "state_bytes": case.state_bytes - 4}
    return replace(case, **{name: cases.column(value) for name, value in columns.items()})


@given(st.sampled_from(list(MODELS.values())), ROWS)
def test_muon_takes_longer_and_keeps_less_unless_a_matrix_exceeds_the_share_of_a_rank(
    model: Model, row: dict[str, int]
) -> None:
    adamw = single_case(model, row | {"offload": 0})
    muon = with_muon(adamw)
    times = [step.step(case, WHERE, Constants()) for case in (adamw, muon)]
    assert times[1].wall[0] > times[0].wall[0]
    assert spent(times[1]) == pytest.approx(times[1].wall, rel=1e-9)
    assert step.bound(muon, WHERE, Constants())[0] <= times[1].wall[0] * (1 + 1e-9)
    for first in (True, False):
        usual, changed = (framework_memory.of_stage(case, first) for case in (adamw, muon))
        table = float((adamw.vocab * adamw.width / adamw.tp)[0])
        whole = max(float(largest_matrix(muon)[0]) * float(muon.state_bytes[0]), table * float(adamw.state_bytes[0]))
        assert 0 < changed.optimizer[0] <= max(float(usual.optimizer[0]), whole) * (1 + 1e-12)
        assert changed._replace(optimizer=usual.optimizer) == usual


def llama(layout: Layout) -> tuple[LayoutCost, LayoutCost, Cases]:
    """Costs of Llama 3 8B in Megatron Core with AdamW and with Muon, and the case of the latter."""
    model = read_request("llama3-8b", None, None, None).model
    assert isinstance(model, Model)
    recipe = Recipe(seq_len=8192, tokens_per_step=8192 * layout.batch_ranks, dtype="bfloat16")
    job = Job(name="m", model=model, layout=layout, recipe=recipe)
    adamw = FRAMEWORKS["megatron"]
    muon = with_settings(adamw, "megatron", TrainingSettings(optimizer="muon"), model)
    costs = [cost_job(job, machine.load("h200"), framework) for framework in (adamw, muon)]
    return costs[0], costs[1], make_cases([job], muon)


def test_tables_keep_two_moments() -> None:
    """By hand: 12 bytes of a weight with AdamW, 8 with Muon, of which two tables of 525 million weights have 12."""
    usual, muon, _ = llama(Layout(dp_replicate=8))
    assert usual.plan.memory["optimizer_state"] % 12 == 0
    weights = usual.plan.memory["optimizer_state"] // 12
    assert weights == pytest.approx(8.03e9, rel=1e-3)
    assert muon.plan.memory["optimizer_state"] == 8 * (weights - 2 * TABLE) + 12 * 2 * TABLE
    assert (usual.plan.calibrated, muon.plan.calibrated) == (True, False)


def test_a_rank_has_at_least_a_whole_parameter() -> None:
    """On 1,024 ranks a share is 7.8 million weights, but the embedding is on a single rank."""
    _, muon, _ = llama(Layout(dp_shard=1024, zero=1))
    assert muon.plan.memory["optimizer_state"] == 12 * TABLE


@pytest.mark.parametrize(("layout", "share"), [(Layout(dp_replicate=8), 1), (Layout(dp_shard=8, zero=1), 8)])
def test_time_is_that_of_the_flops_of_all_matrices(layout: Layout, share: int) -> None:
    """By hand: five iterations on m x n, m <= n, of m m n, m m m and m m n multiply-adds, in 32 layers."""
    matrices = [(4096, 6144), (4096, 4096), (4096, 28672), (4096, 14336)]  # with queries, keys and values; with a gate
    flops = 32 * 5 * sum(2 * m * m * (2 * n + m) for m, n in matrices)
    *_, case = llama(layout)
    assert orthogonalization_seconds(case, WHERE, FREE)[0] == pytest.approx(flops / share / WHERE.peak[0], rel=1e-6)


def test_the_largest_matrix_bounds_the_time_on_many_ranks() -> None:
    *_, case = llama(Layout(dp_shard=1024, zero=1))
    flops = 5 * 2 * 4096**2 * (2 * 28672 + 4096)
    assert orthogonalization_seconds(case, WHERE, FREE)[0] == pytest.approx(flops / WHERE.peak[0], rel=1e-6)
