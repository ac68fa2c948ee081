"""Columns of cases."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs import cases, framework_support, layout_space
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.recipe import Recipe

MODEL = Model(layers=4, hidden_size=256, ffn_hidden_size=1024, heads=4, kv_heads=4, head_dim=64, vocab=1024)


def space() -> Cases:
    """All layouts of a decoder on eight devices."""
    framework = framework_support.FRAMEWORKS["megatron"]
    wanted = PlannerInput(model=MODEL, devices=8, per_node=8, samples=16, seq_len=128)
    return layout_space.as_cases(wanted, framework.layouts(wanted), framework.keeps)


def test_taken_rows_share_columns_that_are_equal_in_all_cases() -> None:
    every, rows = space(), np.array([3, 0, 3])
    taken = every.take(rows)
    assert len(taken) == 3
    assert taken.width is every.width
    assert taken.tp.tolist() == every.tp[rows].tolist()


@pytest.mark.parametrize("rows", [np.array([0, 0]), np.zeros(0, np.intp)])
def test_rows_of_a_single_case_have_their_number(rows: np.ndarray) -> None:
    recipe = Recipe(seq_len=128, tokens_per_step=1024, micro_batch_size=1, dtype="bfloat16")
    single = cases.of_jobs([Job(model=MODEL, layout=Layout(), recipe=recipe)])
    assert len(single.take(rows)) == len(rows)


def test_no_rows_are_no_cases() -> None:
    assert len(space().take(np.zeros(0, np.intp))) == 0
