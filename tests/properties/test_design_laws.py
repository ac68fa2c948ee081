"""Laws of changed machines: improvements never make a step slower, alone or together."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.properties.test_planner_laws import MACHINES, MODELS, wanted
from trainyard import machine
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.predict.designs.fastest_step import fastest_step
from trainyard.predict.designs.machine_changes import CHANGES, improve_machine, with_own_constants
from trainyard.predict.economics.training_budget import NO_BUDGET
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.search.layout_cost import LayoutCost
from trainyard.predict.search.search import fastest

FRAMEWORK_NAMES = st.sampled_from(["trainyard", "megatron", "torchtitan"])
LONGER_RING = 1.05
"""Largest step with a larger node over that without: each of n ranks on the links of a node carries (n - 1) / n of the
data of a collective, in n - 1 hops."""
RATES_AND_TIMES = [name for name in CHANGES if name not in ("memory-capacity", "node-size")]


class Search:
    """Searches of one model on changed copies of a machine. `known`: the jobs of the fastest layouts so far."""

    def __init__(self, model: Model, name: str, framework: str) -> None:
        self.framework = FRAMEWORKS[framework]
        self.machine = machine.load(name)
        self.wanted = wanted(model, self.machine, 16, 64)
        self.known: list[Job] = []

    def on(self, target: Machine) -> LayoutCost:
        cost = fastest_step(self.wanted, target, self.framework, lambda _: None, self.known)
        self.known.append(cost.plan.job)
        return cost

    def ns(self, factors: dict[str, float]) -> float:
        """Step time in ns with these changes; infinite if no layout fits."""
        changed = improve_machine(with_own_constants(self.machine, self.framework.software), factors)
        try:
            return self.on(changed).plan.ledger.wall_ns
        except BadJob:
            return float("inf")


@settings(max_examples=12, deadline=None)
@given(MODELS, MACHINES, FRAMEWORK_NAMES, st.sampled_from([2.0, 3.0, 4.0]))
def test_each_improvement_is_never_slower_and_all_are_the_fastest(
    model: Model, name: str, framework: str, factor: float
) -> None:
    search = Search(model, name, framework)
    before = search.ns({})
    improvements = [change for change in CHANGES if change != "node-size"]
    alone = [search.ns({change: factor}) for change in improvements]
    assert max(alone) <= before
    assert search.ns(dict.fromkeys(improvements, factor)) <= min(alone)


@settings(max_examples=12, deadline=None)
@given(MODELS, MACHINES, FRAMEWORK_NAMES, st.sampled_from([2.0, 4.0]))
def test_larger_node_is_slower_by_its_longer_ring_at_most(
    model: Model, name: str, framework: str, factor: float
) -> None:
    search = Search(model, name, framework)
    # In a longer torus, a group of as many ranks no longer goes around an axis, and has a line in place of a ring.
    assume(search.machine.intra_node.torus is None)
    assert search.ns({"node-size": factor}) <= search.ns({}) * LONGER_RING


@settings(max_examples=12, deadline=None)
@given(MODELS, MACHINES, FRAMEWORK_NAMES)
def test_own_constants_and_factors_of_one_change_no_step(model: Model, name: str, framework: str) -> None:
    search = Search(model, name, framework)
    try:
        known = fastest(search.wanted, search.machine, search.framework, NO_BUDGET, lambda _: None)
    except BadJob:
        return
    assert search.ns({}) == known.plan.ledger.wall_ns
    assert search.ns(dict.fromkeys(CHANGES, 1.0)) == known.plan.ledger.wall_ns


@settings(max_examples=12, deadline=None)
@given(MODELS, MACHINES, FRAMEWORK_NAMES, st.floats(1.5, 10))
def test_step_is_divided_by_the_factor_of_all_rates_and_times(
    model: Model, name: str, framework: str, factor: float
) -> None:
    search = Search(model, name, framework)
    before = search.ns({})
    after = search.ns(dict.fromkeys(RATES_AND_TIMES, factor))
    if before < float("inf") and not search.known[0].recipe.offload:
        assert after == pytest.approx(before / factor, rel=1e-6)
