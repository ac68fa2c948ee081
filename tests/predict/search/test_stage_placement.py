"""The layers of the first and the last stage: the chosen partition is the fastest, never slower than the even one."""

from __future__ import annotations

from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_

from tests.predict.test_plan import EXPERTS, H100
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.inputs import machine_model
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.inputs.machine_model import MachineModel
from trainyard.predict.memory import framework_memory
from trainyard.predict.pipeline import partition
from trainyard.predict.search import stage_placement
from trainyard.predict.search.layout_cost import cost_job, make_cases
from trainyard.predict.search.shortlist import shortlist
from trainyard.predict.time import step
from trainyard.recipe import Recipe
from trainyard.train.rules import pipeline_rules

MEGATRON, TORCHTITAN = FRAMEWORKS["megatron"], FRAMEWORKS["torchtitan"]
WIDE_VOCABULARY = Model(
    name="wide-vocabulary",
    layers=8,
    hidden_size=1024,
    ffn_hidden_size=4096,
    heads=8,
    kv_heads=8,
    head_dim=128,
    vocab=131072,
)
ROOM = 1e15
"""Bytes that suffice for every layout."""


def pipeline_job(model: Model, pp: int, interleave: int, micro_batches: int, seq_len: int = 1024, **axes: int) -> Job:
    layout = Layout(pp=pp, interleave=interleave, zero=1 if axes.get("dp_shard", 1) > 1 else 3, **axes)
    recipe = Recipe(
        seq_len=seq_len, tokens_per_step=micro_batches * layout.batch_ranks * seq_len, micro_batch_size=1,
        dtype="bfloat16", schedule="interleaved" if interleave > 1 else "1f1b",
    )  # fmt: skip
    return Job(name=model.name, model=model, layout=layout, recipe=recipe)


def fastest_of_all(job: Job, model: MachineModel) -> float:
    """The shortest step in seconds over every number of layers fewer on the first and the last stage, all simulated."""
    stages, numbers = job.layout.pp * job.layout.interleave, range(job.decoder.layers + 1)
    jobs = [
        stage_placement.with_less_layers(job, less)
        for less in product(numbers, numbers)
        if MEGATRON.places_layers(job.decoder, stages, *less)
    ]
    return float(np.min(step.step(make_cases(jobs, MEGATRON), model.hardware, model.values).wall))


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from([(2, 1), (3, 1), (4, 1), (2, 2), (2, 3), (4, 2)]), st.integers(0, 9), st.integers(1, 3),
    st.sampled_from([1024, 32768, 131072]), st.booleans(),
)  # fmt: skip
def test_chosen_partition_is_the_fastest_of_all(
    shape: tuple[int, int], more: int, rounds: int, vocab: int, routed: bool
) -> None:
    pp, interleave = shape
    model = replace_(EXPERTS if routed else WIDE_VOCABULARY, layers=pp * interleave + more, vocab=vocab)
    job = pipeline_job(model, pp, interleave, micro_batches=rounds * pp, seq_len=256)
    known = machine_model.build(H100, MEGATRON.software, "bfloat16")
    even_ns = cost_job(job, H100, MEGATRON).plan.ledger.wall_ns
    (best,) = stage_placement.find_fastest([job], MEGATRON, known, np.array([even_ns / 1e9]), ROOM)
    fastest_ns = fastest_of_all(job, known) * 1e9
    if best is None:
        assert fastest_ns >= even_ns - 1
        return
    assert fastest_ns - 1 <= best.wall_s * 1e9 <= min(even_ns, fastest_ns * 1.001) + 1
    chosen = cost_job(stage_placement.with_less_layers(job, best.less), H100, MEGATRON)
    assert chosen.plan.ledger.wall_ns == pytest.approx(best.wall_s * 1e9, abs=1)
    assert chosen.reserved == pytest.approx(best.reserved_bytes, abs=1)


def test_layers_of_the_last_stage_make_room_for_a_large_head() -> None:
    """The head takes as long as several layers: the last of four stages has fewer of them."""
    model = replace_(WIDE_VOCABULARY, hidden_size=2048, ffn_hidden_size=8192, heads=16, kv_heads=16, vocab=262144)
    job = pipeline_job(model, 4, 1, micro_batches=32)
    known = machine_model.build(H100, MEGATRON.software, "bfloat16")
    even = cost_job(job, H100, MEGATRON)
    (best,) = stage_placement.find_fastest([job], MEGATRON, known, np.array([even.plan.ledger.wall_ns / 1e9]), ROOM)
    assert best is not None
    counts = partition.layers_per_stage(8, 4, *best.less)
    assert counts[-1] < 2 <= min(counts[:-1])
    assert best.wall_s * 1e9 < 0.9 * even.plan.ledger.wall_ns


def test_partitions_of_several_jobs_are_those_of_each() -> None:
    jobs = [pipeline_job(replace_(WIDE_VOCABULARY, layers=layers), 4, 1, 16) for layers in (8, 9, 12, 14)]
    known = machine_model.build(H100, MEGATRON.software, "bfloat16")
    limits = np.array([cost_job(job, H100, MEGATRON).plan.ledger.wall_ns / 1e9 for job in jobs])
    together = stage_placement.find_fastest(jobs, MEGATRON, known, limits, ROOM)
    for at, (job, best) in enumerate(zip(jobs, together, strict=True)):
        (alone,) = stage_placement.find_fastest([job], MEGATRON, known, limits[at : at + 1], ROOM)
        assert (best and best.less) == (alone and alone.less)


def test_partitions_that_do_not_fit_are_not_chosen() -> None:
    job = pipeline_job(WIDE_VOCABULARY, 4, 1, micro_batches=32)
    known = machine_model.build(H100, MEGATRON.software, "bfloat16")
    limits = np.array([cost_job(job, H100, MEGATRON).plan.ledger.wall_ns / 1e9])
    (best,) = stage_placement.find_fastest([job], MEGATRON, known, limits, ROOM)
    assert best is not None
    (smaller,) = stage_placement.find_fastest([job], MEGATRON, known, limits, best.reserved_bytes * 0.999)
    assert smaller is None or smaller.reserved_bytes < best.reserved_bytes


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_plan_is_never_slower_than_without_placement(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = PlannerInput(replace_(WIDE_VOCABULARY, layers=16), 16, 8, 64, 1024, fixed={"pp": 4, "interleave": 1})
    placed = shortlist(wanted, H100, FRAMEWORKS[framework], front=True)
    monkeypatch.setattr(stage_placement, "place_layers", lambda space, choices, budget: list(choices))
    even = shortlist(wanted, H100, FRAMEWORKS[framework], front=True)
    assert placed.fastest.plan.ledger.wall_ns < (1 - stage_placement.LEAST_GAIN) * even.fastest.plan.ledger.wall_ns
    assert placed.fastest.plan.job.layout.end_less_layers is not None
    walls, sizes = zip(*((point.wall_ns, point.reserved) for point in placed.front), strict=True)
    assert list(walls) == sorted(walls)
    assert list(sizes) == sorted(set(sizes), reverse=True)
    for choice in placed.choices:
        again = cost_job(choice.plan.job, H100, FRAMEWORKS[framework])
        assert again.plan.ledger == choice.plan.ledger
        assert again.plan.memory == choice.plan.memory
        assert again.reserved == pytest.approx(choice.reserved, abs=1)


def test_llama3_placement_is_the_fastest_for_llama3_405b() -> None:
    """arXiv:2407.21783, section 3.3.2: with one layer per stage, the first has only the embedding and the last only the
    head. Megatron Core's own division is the same, and no other is faster; equal ones are not possible."""
    model = msgspec.convert(presets.load("llama3-405b").model, Model)
    job = pipeline_job(model, 16, 8, micro_batches=16, seq_len=8192, tp=8, dp_shard=128)
    assert partition.layers_per_stage(126, 128, 1, 1) == [0, *[1] * 126, 0]
    own = cost_job(job, H100, MEGATRON)
    explicit = cost_job(stage_placement.with_less_layers(job, (1, 1)), H100, MEGATRON)
    assert explicit.plan.ledger == own.plan.ledger
    known = machine_model.build(H100, MEGATRON.software, "bfloat16")
    limits = np.array([own.plan.ledger.wall_ns / 1e9 * (1 - 1e-3)])
    assert stage_placement.find_fastest([job], MEGATRON, known, limits, ROOM) == [None]


# Memory


def test_memory_has_the_layers_of_each_end() -> None:
    """Llama 3 8B on four stages: the parameters of the first and of the last rank are those of their layers."""
    model = replace_(WIDE_VOCABULARY, layers=32)
    (case_even, case_less) = (
        make_cases([job], MEGATRON)
        for even in [pipeline_job(model, 4, 1, 8)]
        for job in (even, stage_placement.with_less_layers(even, (1, 3)))
    )
    layer = 2 * (4 * 1024 * 1024 + 3 * 1024 * 4096)  # bytes of a layer's matrices in bfloat16
    for first, fewer in ((True, 0), (False, 2)):  # 36 / 4 = 9: 8, 9, 9, 6
        sizes = [float(framework_memory.of_stage(case, first).parameters[0]) for case in (case_even, case_less)]
        assert sizes[0] - sizes[1] == pytest.approx(fewer * layer, rel=1e-3)


def test_second_rank_counts_if_it_has_more_layers_than_the_first() -> None:
    """Nine layers of three micro-batches in flight, against one layer of four, without a vocabulary to speak of."""
    model = replace_(WIDE_VOCABULARY, layers=28, vocab=128)
    job = stage_placement.with_less_layers(pipeline_job(model, 4, 1, 8), (8, 0))
    case = make_cases([job], MEGATRON)
    assert partition.layers_per_stage(28, 4, 8, 0) == [1, 9, 9, 9]
    first = framework_memory.of_stage(case, first=True)
    fullest = framework_memory.memory(case)
    assert float(fullest.activations[0]) == pytest.approx(float(first.activations[0]) * 27 / 4, rel=0.01)
    assert float(fullest.parameters[0]) > 8 * float(first.parameters[0])


@given(st.integers(1, 60), st.integers(2, 6), st.integers(1, 4), st.integers(0, 4), st.integers(0, 4))
def test_layers_of_ranks_sum_to_the_model(layers: int, pp: int, interleave: int, first: int, last: int) -> None:
    stages = pp * interleave
    each = (layers + first + last) // stages
    if max(first, last) > each:
        return
    counts = partition.layers_per_stage(layers, stages, first, last)
    divided = partition.divided(float(layers), float(stages), first, last)
    for rank in range(pp):
        assert float(divided.on_rank(float(rank), float(pp))) == sum(counts[rank::pp])
    less = partition.find_less_layers(counts)
    assert less is not None
    assert partition.layers_per_stage(layers, stages, *less) == counts
    assert sum(less) <= first + last
    same = partition.stage_sizes(layers, stages, *less) == partition.stage_sizes(layers, stages, first, last)
    assert same


@given(st.lists(st.integers(0, 4), min_size=2, max_size=6))
def test_other_stages_have_no_numbers(counts: list[int]) -> None:
    less = partition.find_less_layers(counts)
    stages, layers = len(counts), sum(counts)
    every = (
        each for each in product(range(12), range(12)) if min(partition.stage_sizes(layers, stages, *each)[:2]) >= 0
    )
    matching = [each for each in every if partition.layers_per_stage(layers, stages, *each) == counts]
    assert less == min(matching, key=lambda each: (sum(each), each), default=None)


# Refusals


def test_layout_refuses_impossible_numbers() -> None:
    with pytest.raises(BadJob, match="only one of them is set"):
        Layout(pp=4, first_stage_less_layers=1)
    with pytest.raises(BadJob, match="pp = 1"):
        Layout(first_stage_less_layers=1, last_stage_less_layers=1)
    with pytest.raises(BadJob, match="negative"):
        Layout(pp=2, first_stage_less_layers=-1, last_stage_less_layers=1)
    assert str(Layout(pp=2, first_stage_less_layers=0, last_stage_less_layers=2)) == "pp 2, ends 0/-2"


def test_own_trainer_and_deepspeed_refuse_placed_layers() -> None:
    job = stage_placement.with_less_layers(pipeline_job(WIDE_VOCABULARY, 4, 1, 8), (0, 1))
    with pytest.raises(BadJob, match="divides layers evenly"):
        pipeline_rules.check(job)
    for framework in ("trainyard", "deepspeed"):
        with pytest.raises(BadJob, match="cannot divide 8 layers over 4 stages"):
            cost_job(job, H100, FRAMEWORKS[framework])
    with pytest.raises(BadJob, match="even stage has only"):
        cost_job(stage_placement.with_less_layers(job, (0, 7)), H100, MEGATRON)
