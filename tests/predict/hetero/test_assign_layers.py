"""Partition of layers over heterogeneous stages, compared with exhaustive search."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.predict.hetero.assign_layers import Costs, assign, least_slowest_seconds


def partitions(stages: int, layers: int) -> list[tuple[int, ...]]:
    """All partitions of the layers into non-empty stages."""
    return [tuple(np.diff([0, *cuts, layers])) for cuts in combinations(range(1, layers), stages - 1)]


def stage_seconds(costs: Costs, counts: tuple[int, ...]) -> list[float]:
    ends = np.cumsum(counts)
    return [costs[stage, end - count, end] for stage, (count, end) in enumerate(zip(counts, ends))]


def total_seconds(costs: Costs, counts: tuple[int, ...], micro_batches: int) -> float:
    per_stage = stage_seconds(costs, counts)
    return (micro_batches - 1) * max(per_stage) + sum(per_stage) if max(per_stage) < np.inf else np.inf


@st.composite
def runs(draw: st.DrawFn) -> Costs:
    """Arbitrary costs of runs, some infinite, not even monotonic in the number of layers."""
    layers = draw(st.integers(1, 7))
    stages = draw(st.integers(1, layers))
    shape = (stages, layers + 1, layers + 1)
    size = int(np.prod(shape))
    values = draw(st.lists(st.integers(0, 12) | st.just(np.inf), min_size=size, max_size=size))
    costs = np.array(values, np.float64).reshape(shape)
    costs[:, np.arange(layers + 1)[:, None] >= np.arange(layers + 1)] = np.inf
    return costs


@given(runs(), st.integers(1, 9))
def test_assignment_equals_exhaustive_search(costs: Costs, micro_batches: int) -> None:
    counts_of_all = partitions(costs.shape[0], costs.shape[1] - 1)
    best = min(total_seconds(costs, counts, micro_batches) for counts in counts_of_all)
    assignment = assign(costs, micro_batches)
    if best == np.inf:
        assert assignment is None
        assert least_slowest_seconds(costs) == np.inf
        return
    assert assignment is not None
    assert sum(assignment) == costs.shape[1] - 1
    assert min(assignment) >= 1
    assert total_seconds(costs, assignment, micro_batches) == pytest.approx(best)
    assert least_slowest_seconds(costs) == min(max(stage_seconds(costs, counts)) for counts in counts_of_all)


@st.composite
def devices(draw: st.DrawFn) -> tuple[list[float], list[int], int]:
    """Seconds per layer and capacity of each stage, and a number of layers that fits."""
    stages = draw(st.integers(2, 12))
    layer_seconds = draw(st.lists(st.sampled_from([1.0, 1.5, 2.25, 3.0, 7.0]), min_size=stages, max_size=stages))
    capacities = draw(st.lists(st.integers(1, 12), min_size=stages, max_size=stages))
    return layer_seconds, capacities, draw(st.integers(stages, sum(capacities)))


@given(devices())
def test_uniform_layers_match_a_closed_form(stages_and_layers: tuple[list[float], list[int], int]) -> None:
    """For identical layers, the pace is the least T at which the sum of min(capacity, T / seconds per layer) reaches
    the number of layers: a second method, for sizes beyond exhaustive search."""
    layer_seconds, capacities, layers = stages_and_layers
    stages = list(zip(layer_seconds, capacities))
    bounds = np.arange(layers + 1)
    counts_between = bounds - bounds[:, None]
    costs = np.stack(
        [
            np.where((counts_between > 0) & (counts_between <= capacity), seconds * counts_between, np.inf)
            for seconds, capacity in zip(layer_seconds, capacities)
        ]
    )
    paces = sorted({seconds * counts_between for seconds in layer_seconds for counts_between in range(1, layers + 1)})
    least = next(
        pace
        for pace in paces
        if min(counts := [min(capacity, int(pace / seconds)) for seconds, capacity in stages]) and sum(counts) >= layers
    )
    assert least_slowest_seconds(costs) == least
    assignment = assign(costs, 10**6)
    assert assignment is not None
    assert max(stage_seconds(costs, assignment)) == least, "with many micro-batches only the slowest stage counts"
    single = assign(costs, 1)
    assert single is not None
    spare = layers - len(layer_seconds)
    cheapest = sum(layer_seconds)
    for seconds, capacity in sorted(zip(layer_seconds, capacities)):
        taken = min(spare, capacity - 1)
        cheapest, spare = cheapest + taken * seconds, spare - taken
    assert sum(stage_seconds(costs, single)) == pytest.approx(cheapest), (
        "with a single one, layers go to the fastest stages"
    )


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 9))
def test_equal_stages_have_equal_layers(stages: int, more: int, micro_batches: int) -> None:
    layers = stages + more
    bounds = np.arange(layers + 1)
    counts_between = bounds - bounds[:, None]
    costs = np.broadcast_to(
        np.where(counts_between > 0, 0.3 * counts_between, np.inf), (stages, layers + 1, layers + 1)
    )
    assignment = assign(costs, micro_batches)
    assert assignment is not None
    assert max(assignment) - min(assignment) <= 1


def test_assignment_is_not_greedy() -> None:
    """Two dense layers, two MoE layers; the second stage can hold only one dense layer. Filling the first stage would
    leave it none."""
    costs = np.full((3, 5, 5), np.inf)
    for first, end in combinations(range(5), 2):
        costs[0, first, end] = costs[2, first, end] = end - first
        costs[1, first, end] = 1.0 if end == first + 1 <= 2 else np.inf
    assert assign(costs, 1) == (1, 1, 2)


def test_more_stages_than_layers_are_infeasible() -> None:
    costs = np.full((3, 3, 3), 1.0)
    costs[:, np.arange(3)[:, None] >= np.arange(3)] = np.inf
    assert assign(costs, 4) is None
