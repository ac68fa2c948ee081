"""Layers to unlike stages: what is found is what trying all assignments finds."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.predict.hetero.assign_layers import Costs, assign, pace


def every(stages: int, layers: int) -> list[tuple[int, ...]]:
    """Each way to cut so many layers into so many runs."""
    return [tuple(np.diff([0, *cuts, layers])) for cuts in combinations(range(1, layers), stages - 1)]


def seconds(costs: Costs, counts: tuple[int, ...]) -> list[float]:
    ends = np.cumsum(counts)
    return [costs[stage, end - count, end] for stage, (count, end) in enumerate(zip(counts, ends))]


def takes(costs: Costs, counts: tuple[int, ...], micro_batches: int) -> float:
    each = seconds(costs, counts)
    return (micro_batches - 1) * max(each) + sum(each) if max(each) < np.inf else np.inf


@st.composite
def runs(draw: st.DrawFn) -> Costs:
    """Any cost of any run, some refused: not even that more layers cost more."""
    layers = draw(st.integers(1, 7))
    stages = draw(st.integers(1, layers))
    shape = (stages, layers + 1, layers + 1)
    size = int(np.prod(shape))
    values = draw(st.lists(st.integers(0, 12) | st.just(np.inf), min_size=size, max_size=size))
    costs = np.array(values, np.float64).reshape(shape)
    costs[:, np.arange(layers + 1)[:, None] >= np.arange(layers + 1)] = np.inf
    return costs


@given(runs(), st.integers(1, 9))
def test_no_assignment_is_better(costs: Costs, micro_batches: int) -> None:
    ways = every(costs.shape[0], costs.shape[1] - 1)
    best = min(takes(costs, counts, micro_batches) for counts in ways)
    found = assign(costs, micro_batches)
    if best == np.inf:
        assert found is None
        assert pace(costs) == np.inf
        return
    assert found is not None
    assert sum(found) == costs.shape[1] - 1
    assert min(found) >= 1
    assert takes(costs, found, micro_batches) == pytest.approx(best)
    assert pace(costs) == min(max(seconds(costs, counts)) for counts in ways)


@st.composite
def devices(draw: st.DrawFn) -> tuple[list[float], list[int], int]:
    """Seconds a layer and room for layers on each stage, and the layers, which fit."""
    stages = draw(st.integers(2, 12))
    each = draw(st.lists(st.sampled_from([1.0, 1.5, 2.25, 3.0, 7.0]), min_size=stages, max_size=stages))
    room = draw(st.lists(st.integers(1, 12), min_size=stages, max_size=stages))
    return each, room, draw(st.integers(stages, sum(room)))


@given(devices())
def test_like_layers_go_where_a_bisection_puts_them(given_to: tuple[list[float], list[int], int]) -> None:
    """Where all layers are alike, the pace is the least T at which min(room, T / seconds a layer) add up to them: a
    second method, for sizes at which not all assignments can be tried."""
    each, room, layers = given_to
    places = np.arange(layers + 1)
    many = places - places[:, None]
    costs = np.stack([np.where((many > 0) & (many <= most), one * many, np.inf) for one, most in zip(each, room)])
    paces = sorted({one * many for one in each for many in range(1, layers + 1)})
    least = next(
        pace for pace in paces
        if min(counts := [min(most, int(pace / one)) for one, most in zip(each, room)]) and sum(counts) >= layers
    )  # fmt: skip
    assert pace(costs) == least
    found = assign(costs, 10**6)
    assert found is not None
    assert max(seconds(costs, found)) == least, "with many micro-batches the slowest stage is all that counts"
    alone = assign(costs, 1)
    assert alone is not None
    spare = layers - len(each)
    cheapest = sum(each)
    for one, most in sorted(zip(each, room)):
        taken = min(spare, most - 1)
        cheapest, spare = cheapest + taken * one, spare - taken
    assert sum(seconds(costs, alone)) == pytest.approx(cheapest), "a single one goes where each layer is fastest"


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 9))
def test_like_stages_have_as_many_layers_each(stages: int, more: int, micro_batches: int) -> None:
    layers = stages + more
    places = np.arange(layers + 1)
    many = places - places[:, None]
    costs = np.broadcast_to(np.where(many > 0, 0.3 * many, np.inf), (stages, layers + 1, layers + 1))
    found = assign(costs, micro_batches)
    assert found is not None
    assert max(found) - min(found) <= 1


def test_a_stage_that_could_take_more_leaves_it_to_one_that_can_take_nothing_else() -> None:
    """Two dense layers, two with experts; the second stage has room for a dense one alone. To fill the first stage
    would leave it none."""
    costs = np.full((3, 5, 5), np.inf)
    for first, end in combinations(range(5), 2):
        costs[0, first, end] = costs[2, first, end] = end - first
        costs[1, first, end] = 1.0 if end == first + 1 <= 2 else np.inf
    assert assign(costs, 1) == (1, 1, 2)


def test_more_stages_than_layers_have_no_assignment() -> None:
    costs = np.full((3, 3, 3), 1.0)
    costs[:, np.arange(3)[:, None] >= np.arange(3)] = np.inf
    assert assign(costs, 4) is None
