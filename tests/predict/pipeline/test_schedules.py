"""Simulated pipelines: the order of operations equals torch's, and the time equals the longest path."""

from __future__ import annotations

from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.refused import refused
from tests.train.parallel.test_pipeline_parallel import STAGES, Mock
from trainyard.errors import BadInput
from trainyard.layout import Layout
from trainyard.predict.pipeline import schedules, simulation
from trainyard.predict.pipeline.simulation import PipelineTimes, SimulatedPipeline, simulate
from trainyard.train.rules import pipeline_rules as rules

V, SPLIT, NAMES = schedules.V_SHAPED, schedules.SPLIT, schedules.SCHEDULES


@st.composite
def shapes(draw: st.DrawFn, names: tuple[str, ...] = NAMES) -> tuple[str, int, int, int]:
    name, pp = draw(st.sampled_from(names)), draw(st.integers(2, 5))
    interleave = 1 if name in rules.ONE_STAGE else 2 if name in V else draw(st.integers(1, 3))
    count = draw(st.integers(1, 16))
    assume(schedules.takes(name, pp, count))
    return name, pp, interleave, count


def even(
    name: str, pp: int, interleave: int, count: int, parts: tuple[float, float, float], hop: float
) -> PipelineTimes:
    """A pipeline of equal stages. `parts`: seconds of a micro-batch on a rank, over all its chunks."""
    forward, inputs, weights = (np.full(pp * interleave, part / interleave) for part in parts)
    return PipelineTimes(name, pp, count, forward, inputs, weights, hop)


WHOLE = st.integers(0, 50).map(float)


@st.composite
def pipelines(draw: st.DrawFn, names: tuple[str, ...] = NAMES) -> PipelineTimes:
    name, pp, interleave, count = draw(shapes(names))
    columns = [np.array(draw(st.lists(WHOLE, min_size=pp * interleave, max_size=pp * interleave))) for _ in range(3)]
    hops = st.lists(WHOLE, min_size=pp * interleave, max_size=pp * interleave).map(np.array)
    return PipelineTimes(name, pp, count, *columns, hop=draw(WHOLE | hops), waits=draw(st.booleans()))


# The order


def rows(shape: tuple[str, int, int, int]) -> list[list[tuple[int, int, int, int]]]:
    """For each rank, its operations (kind, stage, micro-batch, held)."""
    begin, *columns = schedules.order(*shape)
    return [
        list(zip(*(column[start:end].tolist() for column in columns), strict=True)) for start, end in pairwise(begin)
    ]


@given(shapes())
def test_each_stage_runs_each_micro_batch_once(shape: tuple[str, int, int, int]) -> None:
    name, pp, interleave, count = shape
    for rank, done in enumerate(rows(shape)):
        mine = [(stage, micro) for stage in schedules.stages_of(rank, name, pp, interleave) for micro in range(count)]
        by_kind = {kind: sorted((stage, micro) for each, stage, micro, _ in done if each == kind) for kind in range(4)}
        assert by_kind[schedules.FORWARD] == sorted(mine)
        assert by_kind[schedules.INPUTS] == by_kind[schedules.WEIGHTS]
        assert sorted(by_kind[schedules.BACKWARD] + by_kind[schedules.INPUTS]) == sorted(mine)
        assert not by_kind[schedules.INPUTS] or name in SPLIT


def torch_rows(name: str, pp: int, interleave: int, count: int) -> list[list[tuple[int, int, int, int]]]:
    from torch.distributed.pipelining.schedules import _ComputationType

    from trainyard.train.parallel import pipeline_parallel

    kinds = {
        _ComputationType.FORWARD: schedules.FORWARD, _ComputationType.FULL_BACKWARD: schedules.BACKWARD,
        _ComputationType.BACKWARD_INPUT: schedules.INPUTS, _ComputationType.BACKWARD_WEIGHT: schedules.WEIGHTS,
    }  # fmt: skip
    numbers = pipeline_parallel.stages_of(0, Layout(pp=pp, interleave=interleave), name)
    stages: list[Any] = [Mock(number, pp * interleave, pp, 0) for number in numbers]
    schedule = pipeline_parallel._MULTI_STAGE[name](stages, count, loss_fn=lambda output, target: output)
    by_rank: list[list[tuple[int, int, int, int]]] = []
    for rank in range(pp):
        actions = [action for action in schedule.pipeline_order[rank] if action is not None]
        by_rank.append([
            (kinds[part.computation_type], part.stage_index, part.microbatch_index or 0, held)
            for action in actions
            for part, held in zip(action.sub_actions or (action,), (1, 0) if action.sub_actions else (0,), strict=True)
        ])  # fmt: skip
    return by_rank


@pytest.mark.torch
@settings(deadline=None)
@given(shapes(tuple(name for name in NAMES if name not in rules.ONE_STAGE)))
def test_order_equals_torchs(shape: tuple[str, int, int, int]) -> None:
    pytest.importorskip("torch")
    assert rows(shape) == torch_rows(*shape)


class Recorder:
    """A stage that records the operations it runs."""

    def __init__(self, number: int, stages: int) -> None:
        mock = Mock(number, stages, stages, number)
        self.__dict__ |= mock.__dict__
        self.stage_index, self.done, self.has_backward = number, [], True

    def forward_one_chunk(self, micro: int, *_: Any, **__: Any) -> None:
        self.done.append((schedules.FORWARD, self.stage_index, micro, 0))

    def backward_one_chunk(self, micro: int, **_: Any) -> None:
        self.done.append((schedules.BACKWARD, self.stage_index, micro, 0))

    def nothing(self, *_: Any, **__: Any) -> list[Any]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = perform_reduce_grad = nothing
    release_fwd_send_outputs = nothing  # from torch 2.15 on


@pytest.mark.torch
@settings(deadline=None)
@given(shapes(rules.ONE_STAGE))
def test_order_equals_what_torch_executes(shape: tuple[str, int, int, int]) -> None:
    """For schedules with one stage per rank; the order that torch lists for these is for display, and is not right."""
    pytest.importorskip("torch")
    from trainyard.train.parallel import pipeline_parallel

    name, pp, _, count = shape
    assume(rules.nearest_count(name, pp, count) == count)
    for rank, expected in enumerate(rows(shape)):
        stage: Any = Recorder(rank, pp)
        runner: Any = pipeline_parallel._ONE_STAGE[name](stage, count)
        runner._initialize_stage = runner._maybe_compute_loss = runner._maybe_get_loss = runner._update_losses = (
            stage.nothing
        )
        runner._step_microbatches([()] * count, [{}] * count)
        assert stage.done == expected


def test_schedule_names_match_the_native_trainer() -> None:
    assert set(NAMES) == set(STAGES)
    assert rules.V_SHAPED == V
    assert set(rules.SPLITS_BACKWARD) == set(SPLIT)


# Against the longest path


def longest(pipeline: PipelineTimes) -> tuple[float, dict[tuple[int, int, int, int], tuple[float, float]]]:
    """Wall time, and (start, end) of each (rank, kind, stage, micro-batch), by a topological sort."""
    interleave = len(pipeline.forward) // pipeline.ranks
    done = rows((pipeline.schedule, pipeline.ranks, interleave, pipeline.micro_batches))
    rank_of = {stage: rank for rank, mine in enumerate(done) for _, stage, *_ in mine}
    before, sent, gives = {}, {}, {}
    for rank, mine in enumerate(done):
        keys = [(rank, *entry[:3]) for entry in mine]
        for index, (key, entry) in enumerate(zip(keys, mine, strict=True)):
            before[key] = keys[index - 1] if index else None
            if key[1] != schedules.WEIGHTS:
                gives[key[1] == schedules.FORWARD, key[2], key[3]] = keys[index + entry[3]]
    for key in before:
        _, kind, stage, micro = key
        if kind != schedules.WEIGHTS:
            forward = kind == schedules.FORWARD
            sent[key] = gives.get((forward, stage + (-1 if forward else 1), micro))
    graph = {key: [needed for needed in (before[key], sent.get(key)) if needed] for key in before}
    times: dict[tuple[int, int, int, int], tuple[float, float]] = {}
    hops = np.broadcast_to(pipeline.hop, len(pipeline.forward))
    for key in TopologicalSorter(graph).static_order():
        rank, kind, stage, _ = key
        source = sent.get(key)
        hop = hops[stage - (kind == schedules.FORWARD)] if source and rank_of[source[2]] != rank_of[stage] else 0.0
        spent = (pipeline.forward, pipeline.inputs + pipeline.weights, pipeline.inputs, pipeline.weights)[kind][stage]
        arrives = times[source][1] if source else 0.0
        free = times[before[key]][1] if before[key] else 0.0
        start = max(free, arrives) + hop if pipeline.waits else max(free, arrives + hop)
        times[key] = (start, start + spent)
    return max(end for _, end in times.values()), times


@settings(max_examples=300)
@given(st.lists(pipelines(), min_size=1, max_size=3))
def test_simulation_equals_the_longest_path(several: list[PipelineTimes]) -> None:
    """Exactly, because all times are whole seconds; alone or together with other pipelines."""
    for pipeline, ran in zip(several, simulate(several), strict=True):
        wall, times = longest(pipeline)
        assert ran.wall == wall
        for rank in range(pipeline.ranks):
            mine = sorted(span for key, span in times.items() if key[0] == rank)
            assert ran.busy[rank] == sum(end - start for start, end in mine)
            assert ran.drain[rank] == wall - max(end for _, end in mine)
            parts = (ran.busy, ran.exchange, ran.warmup, ran.steady, ran.drain)
            assert all(part[rank] >= 0 for part in parts)
            assert sum(part[rank] for part in parts) == wall


@given(pipelines())
def test_peak_in_flight_matches_a_count(pipeline: PipelineTimes) -> None:
    ran = simulate([pipeline])[0]
    shape = (pipeline.schedule, pipeline.ranks, len(pipeline.forward) // pipeline.ranks, pipeline.micro_batches)
    for rank, done in enumerate(rows(shape)):
        now, most = set(), 0
        for kind, stage, micro, _ in done:
            if kind == schedules.FORWARD:
                now.add((stage, micro))
            elif kind != schedules.INPUTS:
                now.remove((stage, micro))
            most = max(most, len(now))
        assert ran.kept[rank] == most == simulation.peak_in_flight(*shape)[rank]


# Properties


@given(pipelines())
def test_no_step_is_shorter_than_its_busiest_rank(pipeline: PipelineTimes) -> None:
    ran = simulate([pipeline])[0]
    assert ran.wall >= np.max(ran.busy + ran.exchange)


@given(pipelines(), st.sampled_from(["forward", "inputs", "weights", "hop"]), st.integers(0, 14))
def test_slower_operations_never_shorten_the_step(pipeline: PipelineTimes, field: str, stage: int) -> None:
    values = getattr(pipeline, field)
    more = values + (1.0 if field == "hop" else np.arange(len(pipeline.forward)) == stage)
    slow, fast = simulate([pipeline._replace(**{field: more}), pipeline])
    assert slow.wall >= fast.wall


PARTS = st.tuples(*[st.floats(0.5, 2.0)] * 3)


def ran(
    name: str, pp: int, interleave: int, count: int, parts: tuple[float, float, float], hop: float = 0.0
) -> SimulatedPipeline:
    return simulate([even(name, pp, interleave, count, parts, hop)])[0]


@given(st.sampled_from(["1f1b", "gpipe"]), st.integers(2, 8), st.integers(1, 4), PARTS)
def test_equal_stages_match_the_bubble_formula(name: str, pp: int, rounds: int, parts: Any) -> None:
    count = pp * rounds
    assert ran(name, pp, 1, count, parts).wall == pytest.approx((count + pp - 1) * sum(parts))


@given(st.integers(2, 6), st.integers(1, 4), st.integers(1, 4), PARTS)
def test_interleaving_divides_the_bubble(pp: int, interleave: int, rounds: int, parts: Any) -> None:
    """Narayanan et al. 2021, section 2.2.2: never slower if stages are equal and transfers are free."""
    wall = ran("interleaved", pp, interleave, pp * rounds, parts).wall
    assert wall == pytest.approx((pp * rounds + (pp - 1) / interleave) * sum(parts))


@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 4), PARTS)
def test_zero_bubble_is_never_slower_with_equal_stages(pp: int, interleave: int, rounds: int, parts: Any) -> None:
    whole = ran("interleaved", pp, interleave, pp * rounds, parts).wall
    assert ran("zero_bubble", pp, interleave, pp * rounds, parts).wall <= whole * (1 + 1e-9)


@given(st.integers(2, 6), st.integers(1, 3))
def test_zbv_with_equal_thirds_only_has_a_warmup_bubble(pp: int, more: int) -> None:
    """Qi et al. 2023, section 6: the only bubble is the first micro-batch's way to the last rank."""
    result = ran("zbv", pp, 2, 2 * pp + more, (2.0, 2.0, 2.0))
    assert result.wall == pytest.approx(6.0 * (2 * pp + more) + (pp - 1))
    assert result.kept.max() <= 2 * pp


@given(st.sampled_from(NAMES), st.integers(2, 6), st.integers(1, 30))
def test_supported_micro_batches_match_the_native_trainer(name: str, pp: int, count: int) -> None:
    """Except for 1F1B, which other frameworks also run with fewer."""
    fits = rules.nearest_count(name, pp, count) == count
    assert schedules.takes(name, pp, count) == (fits or name == "1f1b")
    if not schedules.takes(name, pp, count):
        with refused(BadInput, name, f"pp {pp}", f"{count} micro-batches"):
            ran(name, pp, 2, count, (1.0, 1.0, 1.0))


def test_deadlock_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 runs its backward pass before its forward pass."""
    order = schedules.order("1f1b", 2, 1, 1)
    backwards = order._replace(**{name: getattr(order, name)[[1, 0, 2, 3]] for name in ("kind", "stage", "micro")})
    monkeypatch.setattr(schedules, "order", lambda *_: backwards)
    monkeypatch.setattr(simulation, "_operation_table", simulation._operation_table.__wrapped__)
    with refused(BadInput, "2 of 2 ranks"):
        ran("1f1b", 2, 1, 1, (1.0, 1.0, 1.0))


def test_a_long_wait_is_not_a_deadlock() -> None:
    assert ran("1f1b", 200, 1, 2, (1.0, 1.0, 1.0)).wall == pytest.approx(3 * 201)
