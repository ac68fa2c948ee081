"""Pipelines in plans: the partition of layers, times of stages, the lower bound of a step, and best-first search."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_

from tests.predict.test_plan import DENSE, EXPERTS, H100, MODELS, WHERE, spent
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs import cases, constant_sets, layout_space
from trainyard.predict.inputs.cases import ACTIVATION_CHECKPOINTS, Cases, column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.pipeline import partition, schedules, step_bounds
from trainyard.predict.pipeline.simulation import simulate
from trainyard.predict.search.search import search
from trainyard.predict.time import step
from trainyard.recipe import Recipe
from trainyard.workloads.ops import transformer_ops


def divided(layers: int, stages: int, ends: int = 0) -> list[int]:
    starts = partition.divided(layers, stages, ends, ends).before(np.arange(stages + 1.0))
    assert (starts[0], starts[-1]) == (0, layers)
    return np.diff(starts).astype(int).tolist()


# Partition of layers


@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 1))
def test_partition_is_complete_and_even(layers: int, stages: int, ends: int) -> None:
    assume(layers + 2 * ends >= stages + (stages == 1) * ends)
    many = divided(layers, stages, ends)
    counted = [*many]
    counted[0] += ends
    counted[-1] += ends
    assert sum(many) == layers
    assert min(many) >= 0
    assert max(counted) - min(counted) <= 1
    assert counted == sorted(counted, reverse=True)


@pytest.mark.parametrize(
    ("layers", "stages", "ends", "many"),
    [
        (126, 16, 1, [7, *[8] * 14, 7]),  # arXiv:2407.21783, section 3.3.2
        (126, 16, 0, [8] * 14 + [7, 7]),
        (70, 12, 1, [5, *[6] * 10, 5]),
        (38, 8, 0, [5] * 6 + [4, 4]),  # DeepSpeed, pull request 4053
        (32, 4, 1, [8, 9, 8, 7]),
        (1, 1, 1, [1]),
    ],
)
def test_partition_matches_published_ones(layers: int, stages: int, ends: int, many: list[int]) -> None:
    assert divided(layers, stages, ends) == many


@pytest.mark.torch
@settings(deadline=None, max_examples=20)
@given(st.integers(1, 6), st.integers(0, 9))
def test_partition_matches_the_native_trainer(stages: int, more: int) -> None:
    torch = pytest.importorskip("torch")
    from trainyard.train.model.language_task import Language

    model = Model(layers=stages + more, hidden_size=32, ffn_hidden_size=64, heads=4, kv_heads=2, head_dim=8)
    task = Language(Job(model=model, layout=Layout(), recipe=Recipe(seq_len=8, tokens_per_step=8)))
    with torch.device("meta"):
        owned = [len(task.stage(number, stages).layers) for number in range(stages)]
    assert divided(model.layers, stages) == owned


# Times of stages


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Cases, str, int]:
    """A case with a pipeline, its schedule, and its micro-batches."""
    name, pp = draw(st.sampled_from(schedules.SCHEDULES)), draw(st.sampled_from([2, 3, 4]))
    interleave = 1 if name in schedules.ONE_STAGE else 2 if name in schedules.V_SHAPED else draw(st.integers(1, 3))
    count = draw(st.integers(1, 12))
    assume(schedules.takes(name, pp, count))
    model = draw(st.sampled_from(list(MODELS.values())))
    layers = draw(st.integers(pp * interleave, 3 * pp * interleave))
    shards, zero = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    job = Job(
        model=replace_(model, layers=layers), layout=Layout(pp=pp, interleave=interleave, dp_shard=shards, zero=zero),  # pyright: ignore[reportArgumentType]
        recipe=Recipe(seq_len=256, tokens_per_step=256 * 4 * count, micro_batch_size=1, dtype="bfloat16"),
    )  # fmt: skip
    case = replace(
        cases.of_jobs([job]), schedule=column(schedules.SCHEDULES.index(name)),
        first_less=column(draw(st.integers(0, layers // (pp * interleave)))),
        last_less=column(draw(st.integers(0, layers // (pp * interleave)))),
        samples=column(count * job.layout.batch_ranks), dense_layers=column(draw(st.integers(0, layers))),
    )  # fmt: skip
    return case, name, count


TUNED = st.sampled_from([
    Constants(), Constants(intra_node=1e-3, inter_node=1e-3), Constants(microbatch_s=0.1),
    Constants(host_forward_s=0.05), Constants(logits=1e4), Constants(kernel_s=1e-3),
])  # fmt: skip


@settings(max_examples=300)
@given(layouts(), TUNED)
def test_no_step_is_shorter_than_its_bound(drawn: tuple[Cases, str, int], known: Constants) -> None:
    case, _, _ = drawn
    predicted = step.step(case, WHERE, known)
    assert step.bound(case, WHERE, known)[0] <= predicted.wall[0] * (1 + 1e-9)
    assert spent(predicted) == pytest.approx(predicted.wall, rel=1e-9)


@given(layouts(), TUNED)
def test_stage_times_sum_to_the_models(drawn: tuple[Cases, str, int], known: Constants) -> None:
    case, name, count = drawn
    parts = step_bounds.parts(case, WHERE, known)
    (pipeline,) = step_bounds.pipelines(case, parts)
    assert (pipeline.schedule, pipeline.micro_batches) == (name, count)
    layers = sum(float((kind.count * (kind.forward_s + kind.backward_s))[0]) for kind in parts.kinds)
    head = float((parts.head_forward_s + parts.head_backward_s + parts.loss_s)[0])
    whole = float(np.sum(pipeline.forward + pipeline.inputs + pipeline.weights))
    assert whole == pytest.approx(layers + head + parts.host_s * float(case.pp[0]))
    assert min(map(np.min, (pipeline.forward, pipeline.inputs, pipeline.weights))) >= 0


def test_dense_layers_are_on_the_first_stages() -> None:
    """Two of six layers are dense, both on the first of three stages."""
    case = replace(
        cases.of_jobs([Job(model=EXPERTS, layout=Layout(pp=3), recipe=Recipe(seq_len=256, tokens_per_step=2048))]),
        layers=column(6), dense_layers=column(2),
    )  # fmt: skip
    parts = step_bounds.parts(case, WHERE, Constants())
    dense, routed = (float((kind.forward_s + kind.backward_s)[0]) for kind in parts.kinds)
    assert routed > dense * 1.05
    (pipeline,) = step_bounds.pipelines(case, parts)
    whole = pipeline.forward + pipeline.inputs + pipeline.weights - parts.host_s
    assert whole[:2] == pytest.approx([2 * dense, 2 * routed])
    assert whole[2] == pytest.approx(
        2 * routed + float((parts.head_forward_s + parts.head_backward_s + parts.loss_s)[0])
    )


def test_ledger_has_the_simulated_bubble() -> None:
    case = cases.of_jobs([
        Job(model=DENSE, layout=Layout(pp=4), recipe=Recipe(seq_len=256, tokens_per_step=2048, schedule="1f1b"))
    ])  # fmt: skip
    (ran,) = simulate(step_bounds.pipelines(case, step_bounds.parts(case, WHERE, Constants())))
    lines = {line.account: float(np.ravel(line.seconds)[0]) for line in step.step(case, WHERE, Constants()).lines}
    for phase in ("warmup", "steady", "drain"):
        assert lines[f"bubble/{phase}@pp"] == pytest.approx(np.mean(getattr(ran, phase)), abs=1e-15)
    assert lines["comm/send_recv@pp"] == pytest.approx(np.mean(ran.exchange))


# Best-first search simulates few cases and misses none


UNEVEN = {name: replace_(model, layers=7) for name, model in MODELS.items() if name != "gpt"}
WIDE = Model(layers=30, hidden_size=4096, ffn_hidden_size=14336, heads=32, kv_heads=8, head_dim=128, vocab=32000)


def simulated(wanted: PlannerInput, framework: str) -> np.ndarray:
    """Seconds of every layout that the framework supports, whether it fits or not."""
    support = FRAMEWORKS[framework]
    batch = layout_space.as_cases(wanted, support.layouts(wanted), support.keeps)
    return step.step(batch, WHERE, constant_sets.choose(H100, support.software).values()).wall


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", UNEVEN)
def test_search_equals_simulating_all_layouts(name: str, framework: str) -> None:
    """All layouts fit."""
    wanted = PlannerInput(UNEVEN[name], 8, 8, 16, 256)
    best = np.sort(simulated(wanted, framework))[:10]
    plan = search(wanted, H100, FRAMEWORKS[framework], most=10)
    assert plan.fitting == len(simulated(wanted, framework))
    assert [choice.plan.ledger.wall_ns for choice in plan.choices] == [round(wall * 1e9) for wall in best.tolist()]


def test_search_simulates_few_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = step.step

    def counted(batch: Cases, *more: Any) -> step.StepTime:
        sizes.append(len(batch))
        return real(batch, *more)

    monkeypatch.setattr(step, "step", counted)
    plan = search(PlannerInput(WIDE, 64, 8, 256, 4096), H100, FRAMEWORKS["megatron"])
    assert 10 <= sum(sizes) < plan.fitting / 5


def test_pareto_front_equals_simulating_all_layouts() -> None:
    wanted = PlannerInput(WIDE, 16, 8, 64, 4096)
    whole = search(wanted, H100, FRAMEWORKS["megatron"], most=10**9)
    least, front = np.inf, []
    for choice in whole.choices:
        if choice.reserved < least:
            least = choice.reserved
            front.append((choice.plan.ledger.wall_ns, choice.reserved))
    plan = search(wanted, H100, FRAMEWORKS["megatron"], most=3, front=True)
    assert len(front) > 3
    assert [(point.wall_ns, point.reserved) for point in plan.front] == front


# Offered pipelines


def enumerate_pipelines(wanted: PlannerInput) -> set[tuple[Any, ...]]:
    """Every pipeline that the rules of trainyard's own trainer accept: (schedule, pp, stages per rank, micro-batch,
    recomputation). With one stage per rank two schedules equal others; GPipe only counts if 1F1B is impossible."""
    pipelines: set[tuple[Any, ...]] = set()
    sizes = range(1, wanted.samples + 1)
    for name, pp, interleave, micro in product(schedules.SCHEDULES, range(2, 9), range(1, 9), sizes):
        ranks = wanted.devices // pp
        if wanted.devices % pp or wanted.samples % (ranks * micro):
            continue
        if interleave == 1 and name in ("interleaved", "looped_bfs"):
            continue
        if name == "gpipe" and wanted.samples // (ranks * micro) >= pp:
            continue
        layout = Layout(pp=pp, dp_shard=ranks, interleave=interleave, zero=2 if ranks > 1 else 3)
        for activation_checkpoint in ACTIVATION_CHECKPOINTS:
            recipe = Recipe(
                seq_len=wanted.seq_len, tokens_per_step=wanted.samples * wanted.seq_len, micro_batch_size=micro,
                dtype="bfloat16", activation_checkpoint=activation_checkpoint, schedule=name,
            )  # fmt: skip
            try:
                transformer_ops.check(Job(model=wanted.model, layout=layout, recipe=recipe))
            except BadJob:
                continue
            pipelines.add((name, pp, interleave, micro, activation_checkpoint))
    return pipelines


@pytest.mark.parametrize("layers", [4, 7, 12])
def test_native_trainer_is_offered_every_supported_pipeline(layers: int) -> None:
    wanted = PlannerInput(
        replace_(DENSE, layers=layers), 8, 8, 16, 256, fixed={"tp": 1, "cp": 1, "ep": 1, "dp_replicate": 1}
    )
    every = FRAMEWORKS["trainyard"].layouts(wanted)
    offered = set()
    for row in map(every.row, range(len(every))):
        job = layout_space.job_of(wanted, row)
        if row["pp"] > 1 and (row["zero"] == 2 or row["dp_shard"] == 1):
            assert cases.of_jobs([job]).schedule[0] == row["schedule"]
            offered.add(
                (
                    job.recipe.schedule,
                    row["pp"],
                    row["interleave"],
                    row["micro_batch_size"],
                    job.recipe.activation_checkpoint,
                )
            )
    assert offered == enumerate_pipelines(wanted)
