"""The layouts that a plan shows: folded variants, ties, the recommended layout and the baseline."""

from __future__ import annotations

from functools import cache
from math import log

import msgspec
import pytest

from trainyard import machine
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search import stage_placement
from trainyard.predict.search.layout_cost import LayoutCost
from trainyard.predict.search.layout_ratio import LARGEST_TIED_RATIO, step_ratio
from trainyard.predict.search.search import SearchResult, search
from trainyard.predict.search.shortlist import shortlist

DENSE = Model(layers=4, hidden_size=64, ffn_hidden_size=192, heads=8, kv_heads=4, head_dim=8, vocab=512)
EXPERTS = Model(
    layers=4, hidden_size=64, ffn_hidden_size=192, heads=8, kv_heads=8, head_dim=8, vocab=512, experts=8, top_k=2,
    moe_ffn_hidden_size=96, shared_experts=1, dense_layers=1,
)  # fmt: skip
H100 = machine.load("h100")
CHECKPOINTS = ("none", "selective", "full")


@pytest.fixture(autouse=True)
def _even_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search of all layouts, to which the rows are compared, does not place layers (`test_stage_placement.py`)."""
    monkeypatch.setattr(stage_placement, "place_layers", lambda space, choices, budget: list(choices))


def preset(name: str) -> Model:
    return msgspec.convert({"name": name, **presets.take(name, "model").keys}, Model)


INPUTS = {
    "dense": PlannerInput(DENSE, 4, 8, 8, 256),
    "experts": PlannerInput(EXPERTS, 8, 8, 8, 256),
    "llama3-8b": PlannerInput(preset("llama3-8b"), 8, 8, 16, 8192),
}
CASES = [("dense", "trainyard"), ("dense", "deepspeed"), ("experts", "megatron"), ("llama3-8b", "torchtitan")]


@cache
def all_layouts(name: str, framework: str) -> SearchResult:
    return search(INPUTS[name], H100, FRAMEWORKS[framework], most=10**9)


@cache
def short(name: str, framework: str) -> SearchResult:
    return shortlist(INPUTS[name], H100, FRAMEWORKS[framework], front=True)


def sizes_of(job: Job) -> tuple[object, ...]:
    """The settings that variants share."""
    layout, recipe = job.layout, job.recipe
    axes = (layout.dp_replicate, layout.dp_shard, layout.tp, layout.cp, layout.pp, layout.ep, layout.zero)
    return (*axes, recipe.activation_checkpoint, recipe.offload)


def wall(choice: LayoutCost) -> int:
    return choice.plan.ledger.wall_ns


def is_plain(job: Job) -> bool:
    layout = job.layout
    others = (layout.tp, layout.cp, layout.pp, layout.ep)
    return set(others) == {1} and 1 in (layout.dp_shard, layout.dp_replicate) and not job.recipe.offload


def complexity(job: Job, highest_zero: int) -> tuple[int, ...]:
    layout = job.layout
    zero = highest_zero - layout.zero if layout.dp_shard * layout.cp > 1 else 0
    return (
        sum(size > 1 for size in (layout.tp, layout.cp, layout.pp, layout.ep)) + job.recipe.offload,
        sum(size > 1 for size in (layout.dp_replicate, layout.dp_shard)),
        zero,
        CHECKPOINTS.index(job.recipe.activation_checkpoint),
    )


def complexities(choices: tuple[LayoutCost, ...], every: tuple[LayoutCost, ...]) -> list[tuple[int, ...]]:
    """The complexity of each choice; ZeRO stages are relative to the highest of `every`, by whether there is a
    pipeline."""
    jobs = [choice.plan.job for choice in every]
    sharded = [job for job in jobs if job.layout.dp_shard * job.layout.cp > 1]
    highest = {
        pipeline: max((job.layout.zero for job in sharded if (job.layout.pp > 1) == pipeline), default=0)
        for pipeline in (False, True)
    }
    return [complexity(choice.plan.job, highest[choice.plan.job.layout.pp > 1]) for choice in choices]


@pytest.mark.parametrize(("name", "framework"), CASES)
def test_rows_are_the_fastest_variants_of_different_layouts(name: str, framework: str) -> None:
    every, shown = all_layouts(name, framework).choices, short(name, framework).choices
    assert len({sizes_of(choice.plan.job) for choice in shown}) == len(shown) <= 10
    for row in shown:
        variants = [choice for choice in every if sizes_of(choice.plan.job) == sizes_of(row.plan.job)]
        assert wall(row) == min(map(wall, variants))
        assert row.folded == len(variants) - 1 >= len(row.variants)
        walls = [point.wall_ns for point in row.variants]
        assert walls == sorted(walls)
        assert set(walls) <= {wall(variant) for variant in variants}


@pytest.mark.parametrize(("name", "framework"), CASES)
def test_fastest_rows_are_shown_except_for_the_recommended_and_the_baseline(name: str, framework: str) -> None:
    fastest: dict[tuple[object, ...], int] = {}
    for choice in all_layouts(name, framework).choices:
        fastest.setdefault(sizes_of(choice.plan.job), wall(choice))
    shown = short(name, framework).choices
    others = sorted(wall(row) for row in shown[1:] if not row.baseline)
    assert others[0] <= sorted(fastest.values())[1]
    assert set(others) <= set(sorted(fastest.values())[: len(shown)])
    assert min(map(wall, shown)) == min(fastest.values())
    assert short(name, framework).fastest.ratio == step_ratio(
        short(name, framework).fastest.plan.ledger, all_layouts(name, framework).choices[0].plan.ledger
    )


@pytest.mark.parametrize(("name", "framework"), CASES)
def test_recommended_is_the_simplest_of_all_tied_layouts(name: str, framework: str) -> None:
    every, shown = all_layouts(name, framework).choices, short(name, framework).choices
    distinct = {sizes_of(choice.plan.job): choice for choice in reversed(every)}  # the fastest variant of each
    tied = tuple(row for row in distinct.values() if step_ratio(row.plan.ledger, every[0].plan.ledger).tied)
    first = shown[0]
    assert complexities((first,), every)[0] == min(complexities(tied, every))
    assert first.ratio is not None
    assert first.ratio.tied
    assert wall(first) / wall(every[0]) == pytest.approx(first.ratio.ratio)
    assert 1 <= first.ratio.ratio <= LARGEST_TIED_RATIO


@pytest.mark.parametrize(("name", "framework"), CASES)
def test_tied_rows_come_first_by_simplicity_then_others_by_time(name: str, framework: str) -> None:
    every, shown = all_layouts(name, framework).choices, short(name, framework).choices
    ties = [bool(row.ratio and row.ratio.tied) for row in shown]
    assert ties == sorted(ties, reverse=True)
    tied, others = shown[: sum(ties)], shown[sum(ties) :]
    assert complexities(tied, every) == sorted(complexities(tied, every))
    assert [wall(row) for row in others] == sorted(wall(row) for row in others)
    again = shortlist(INPUTS[name], H100, FRAMEWORKS[framework], front=True)
    assert [row.plan.job for row in again.choices] == [row.plan.job for row in shown]


@pytest.mark.parametrize(("name", "framework"), CASES)
def test_baseline_is_the_fastest_plain_layout(name: str, framework: str) -> None:
    every, result = all_layouts(name, framework).choices, short(name, framework)
    plain = [choice for choice in every if is_plain(choice.plan.job)]
    highest = max((choice.plan.job.layout.zero for choice in plain if choice.plan.job.layout.dp_shard > 1), default=0)
    plain = [
        choice for choice in plain if choice.plan.job.layout.dp_shard == 1 or choice.plan.job.layout.zero == highest
    ]
    marked = [row for row in result.choices if row.baseline]
    assert len(marked) == bool(plain) == (not result.no_baseline)
    if plain:
        assert wall(marked[0]) == min(map(wall, plain))
        assert is_plain(marked[0].plan.job)


@pytest.mark.parametrize(("name", "framework"), CASES)
def test_front_is_that_of_all_layouts(name: str, framework: str) -> None:
    expected = search(INPUTS[name], H100, FRAMEWORKS[framework], front=True).front
    shown = short(name, framework).front
    assert [(point.wall_ns, point.reserved) for point in shown] == [
        (point.wall_ns, point.reserved) for point in expected
    ]


def tight(share: float) -> Machine:
    """An H100 with the fraction `share` of its memory, on a host without memory to offload to."""
    memory = H100.device.memory
    device = msgspec.structs.replace(H100.device, memory=msgspec.structs.replace(memory, value=memory.value * share))
    return msgspec.structs.replace(H100, device=device, host=None)


@pytest.mark.parametrize(
    ("changed", "where", "values"),
    [
        ({"samples": 6}, H100, ("6", "4 data-parallel")),
        ({"fixed": {"tp": 2}}, H100, ("--fix", "tp")),
        ({"model": preset("llama3-8b")}, tight(0.6), ("GB of each rank", "47.9 GB")),
    ],
)
def test_missing_baseline_is_explained(changed: dict[str, object], where: Machine, values: tuple[str, ...]) -> None:
    result = shortlist(INPUTS["dense"]._replace(**changed), where, FRAMEWORKS["megatron"])
    assert not any(row.baseline for row in result.choices)
    for value in values:
        assert value in result.no_baseline


def test_baseline_that_the_framework_refuses_is_explained() -> None:
    def refuses(job: Job) -> None:
        if is_plain(job):
            raise BadJob("no plain data parallelism here.")

    result = shortlist(INPUTS["dense"], H100, FRAMEWORKS["megatron"], refuses=refuses)
    assert "no plain data parallelism here." in result.no_baseline
    assert not any(is_plain(row.plan.job) for row in result.choices)


def test_recommended_layout_and_slow_baseline_join_the_fastest() -> None:
    wanted = PlannerInput(preset("mixtral-8x7b"), 64, 8, 512, 8192)
    first, *others, last = shortlist(wanted, H100, FRAMEWORKS["trainyard"]).choices
    assert len(others) == 8
    assert wall(first) > max(map(wall, others)), "simpler than all others, and found by a search of its own"
    assert (first.plan.job.layout.dp_shard, first.plan.job.layout.pp, first.plan.job.layout.ep) == (1, 4, 8)
    assert last.baseline
    assert last.plan.job.layout.dp_shard == 64
    assert last.ratio is not None
    assert not last.ratio.tied
    assert log(last.ratio.ratio) > 0.2


def test_faster_zero_stage_is_not_the_baseline() -> None:
    wanted = PlannerInput(preset("llama3-8b"), 64, 8, 256, 8192)
    shown = shortlist(wanted, H100, FRAMEWORKS["trainyard"]).choices
    others = {row.plan.job.layout.zero for row in shown if is_plain(row.plan.job) and not row.baseline}
    (marked,) = (row for row in shown if row.baseline)
    assert marked.plan.job.layout.zero == 3
    assert 2 in others


def test_a_single_rank_has_no_baseline_to_explain() -> None:
    result = shortlist(INPUTS["dense"]._replace(devices=1), H100, FRAMEWORKS["megatron"])
    assert result.no_baseline == ""
    assert not any(row.baseline for row in result.choices)
