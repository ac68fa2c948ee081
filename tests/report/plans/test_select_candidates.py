"""The layouts of a plan that are selected for measurement."""

from __future__ import annotations

from functools import cache

import pytest

from tests.refused import refused
from trainyard import api
from trainyard.errors import BadInput
from trainyard.report.plans.plans_file import Plans
from trainyard.report.plans.select_candidates import select_candidates


@cache
def plans() -> Plans:
    return api.plan("llama3-8b", machine="h100", devices=64, batch=256, seq_len=8192, framework="megatron")


@pytest.mark.parametrize("top", [1, 2, 3, 5, 99])
def test_recommended_then_baseline_then_fastest(top: int) -> None:
    chosen = select_candidates(plans(), top)
    assert len(chosen) == min(top, len(plans().choices)) == len({id(record) for record in chosen})
    assert chosen[0] is plans().best
    if top > 1:
        assert chosen[1].baseline
    walls = [record.plan.ledger.wall_ns for record in chosen[2:]]
    assert walls == sorted(walls)
    if top > 2:
        assert plans().fastest in chosen


def test_top_below_one_is_refused() -> None:
    with refused(BadInput, "--top", 0):
        select_candidates(plans(), 0)
