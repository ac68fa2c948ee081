"""Heterogeneous clusters: the search finds the best pipeline, which fits; parts of the same machine act as one."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from functools import cache
from itertools import combinations, groupby, permutations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.predict.test_plan import DENSE, EXPERTS, LATENT, spent
from tests.refused import code_of, missing_values
from trainyard import machine
from trainyard.cli.main import answer
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.predict.configs import uneven_stages
from trainyard.predict.configs.megatron import megatron_stages
from trainyard.predict.economics.training_budget import NO_BUDGET
from trainyard.predict.hetero import best_pipelines, fleet, pipeline_step, pipelines
from trainyard.predict.hetero.assign_layers import assign
from trainyard.predict.hetero.best_pipelines import HeteroResult
from trainyard.predict.hetero.fleet import FleetPart
from trainyard.predict.hetero.pipeline_step import HeteroPipeline
from trainyard.predict.hetero.pipelines import PipelineTable
from trainyard.predict.inputs import layout_space
from trainyard.predict.inputs.cases import column
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.memory import framework_memory
from trainyard.predict.memory.framework_memory import RESERVED, USABLE
from trainyard.predict.pipeline import schedules, simulation, stages, step_bounds
from trainyard.predict.pipeline.stages import StageLayers
from trainyard.predict.time import data_parallel, shapes
from trainyard.report.plans.hetero_tables import from_mixed, verdict
from trainyard.report.plans.plans_file import read as read_plans

MODELS = {
    "dense": msgspec.structs.replace(DENSE, layers=6, hidden_size=512, ffn_hidden_size=2048, head_dim=64, vocab=4096),
    "experts": msgspec.structs.replace(
        EXPERTS, layers=5, dense_layers=2, hidden_size=512, ffn_hidden_size=2048, head_dim=64
    ),
    "latent": LATENT,
}
MEGATRON = FRAMEWORKS["megatron"]
A100, H100 = machine.load("a100"), machine.load("h100")


def with_memory(machine: Machine, memory_bytes: float) -> Machine:
    memory = msgspec.structs.replace(machine.device.memory, value=memory_bytes)
    return msgspec.structs.replace(machine, device=msgspec.structs.replace(machine.device, memory=memory))


def wanted_for(model: Model, parts: tuple[FleetPart, ...], **options: Any) -> PlannerInput:
    return PlannerInput(model, sum(part.devices for part in parts), 8, options.pop("samples", 8), 256, **options)


def all_tables(model: Model, parts: tuple[FleetPart, ...], **options: Any) -> list[PipelineTable]:
    wanted = wanted_for(model, parts, **options)
    layouts = pipelines.enumerate_layouts(wanted, parts, MEGATRON)
    return pipelines.build_tables(wanted, layouts, MEGATRON, fleet.model_parts(wanted, parts, MEGATRON))


@cache
def two_parts(name: str) -> list[PipelineTable]:
    return all_tables(MODELS[name], (FleetPart(H100, 8), FleetPart(A100, 16)), samples=16)


def partitions(layers: int, depth: int) -> list[tuple[int, ...]]:
    return [tuple(np.diff([0, *cut, layers]).tolist()) for cut in combinations(range(1, layers), depth - 1)]


def fits(pipeline: HeteroPipeline) -> bool:
    """Whether each stage fits in the memory of its device."""
    depth = len(pipeline.layers_per_stage)
    for stage, part in enumerate(pipeline.table.part_of_stage):
        stage_layers = StageLayers(*(column(count[stage]) for count in pipeline.stage_layers))
        memory = stages.memory(pipeline.case, stage_layers, column(depth - stage), column(stage == 0)).total
        if float(memory[0]) * RESERVED > pipeline.table.part_models[part].hardware.memory[0] * USABLE:
            return False
    return True


def axes(table: PipelineTable) -> list[tuple[int, ...]]:
    """The row of the layout space of each case."""
    return [
        tuple(HeteroPipeline(table=table, row=row, layers_per_stage=()).axes.values())
        for row in range(len(table.cases))
    ]


# The search


@given(
    st.lists(
        st.sampled_from([FleetPart(H100, 8), FleetPart(H100, 16), FleetPart(A100, 8)]), min_size=1, max_size=4
    ).map(tuple)
)
def test_orders_are_the_distinct_permutations(parts: tuple[FleetPart, ...]) -> None:
    orders = [[str(parts[index]) for index in order] for order in fleet.orders(parts)]
    assert sorted(orders) == sorted(map(list, {tuple(map(str, order)) for order in permutations(parts)}))


def whole_space(wanted: PlannerInput, parts: tuple[FleetPart, ...]) -> set[tuple[int, ...]]:
    """Brute force: the layouts of the whole space whose stages each lie within one part."""
    rows = set()
    for per_node in {part.machine.per_node for part in parts}:
        layouts = layout_space.space(wanted._replace(per_node=per_node))
        layouts = layouts.keep(MEGATRON.allows(wanted, layouts))
        for index in range(len(layouts)):
            row = layouts.row(index)
            ranks = wanted.devices // row["pp"]
            if (
                row["pp"] > 1
                and schedules.SCHEDULES[row["schedule"]] == "1f1b"
                and all(part.devices % ranks == 0 for part in parts)
            ):
                rows.add(tuple(row.values()))
    return rows


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("counts", [(4, 8), (2, 2, 4), (3, 5)], ids=str)
def test_layouts_equal_those_of_brute_force(name: str, counts: tuple[int, ...]) -> None:
    four_per_node = msgspec.structs.replace(A100, per_node=4)
    parts = tuple(FleetPart(machine, count) for machine, count in zip((H100, four_per_node, A100), counts))
    wanted = wanted_for(MODELS[name], parts)
    layouts = pipelines.enumerate_layouts(wanted, parts, MEGATRON)
    rows = [tuple(layouts.row(index).values()) for index in range(len(layouts))]
    assert len(rows) == len(set(rows))
    assert set(rows) == whole_space(wanted, parts)


@cache
def least_memory(name: str, counts: tuple[int, int], samples: int = 8) -> float:
    """Least bytes per device with which one pipeline fits."""
    parts = (FleetPart(with_memory(H100, 1), counts[0]), FleetPart(with_memory(A100, 1), counts[1]))
    wanted = wanted_for(MODELS[name], parts, samples=samples)
    part_models = fleet.model_parts(wanted, parts, MEGATRON)
    return (
        pipelines.missing_bytes(wanted, pipelines.enumerate_layouts(wanted, parts, MEGATRON), MEGATRON, part_models)
        / USABLE
    )


ROOM = st.sampled_from([0.7, 1.01, 1.2, 1.5, 2.0, 100.0])


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(list(MODELS)), ROOM, ROOM, st.sampled_from([(1, 2), (2, 2), (2, 1)]), st.sampled_from([2, 8]))
def test_partition_is_optimal_and_not_below_the_bound(
    name: str, first: float, second: float, counts: tuple[int, int], samples: int
) -> None:
    """Tries all partitions that fit, for a sample of the layouts and every order of the parts."""
    need, model = least_memory(name, counts, samples), MODELS[name]
    parts = (
        FleetPart(with_memory(H100, first * need), counts[0]),
        FleetPart(with_memory(A100, second * need), counts[1]),
    )
    wanted = wanted_for(model, parts, samples=samples)
    layouts = pipelines.enumerate_layouts(wanted, parts, MEGATRON)
    layouts = layouts.keep(np.arange(len(layouts)) % 7 == 0)
    part_models = fleet.model_parts(wanted, parts, MEGATRON)
    fitting = {
        (tuple(table.part_of_stage), row): table
        for table in pipelines.build_tables(wanted, layouts, MEGATRON, part_models)
        for row in axes(table)
    }
    roomy_models = tuple(
        model_._replace(hardware=replace(model_.hardware, memory=column(1e15))) for model_ in part_models
    )
    runs, run_index = stages.runs(model)
    for unlimited in pipelines.build_tables(wanted, layouts, MEGATRON, roomy_models):
        table = replace(unlimited, part_models=part_models)
        for index, row in enumerate(axes(table)):
            candidates = [
                HeteroPipeline(table=table, row=index, layers_per_stage=counts_)
                for counts_ in partitions(model.layers, len(table.part_of_stage))
            ]
            best = min((pipeline.flow_seconds for pipeline in candidates if fits(pipeline)), default=np.inf)
            chosen = assign(table.costs(index, runs, run_index), round(float(table.cases.accumulate[index])))
            assert (chosen is None) == (best == np.inf)
            if chosen is None:
                continue
            pipeline = HeteroPipeline(table=table, row=index, layers_per_stage=chosen)
            assert fits(pipeline)
            assert pipeline.flow_seconds == pytest.approx(best, rel=1e-6)
            fitting_table = fitting[tuple(table.part_of_stage), row]
            assert fitting_table.bound[axes(fitting_table).index(row)] <= best * (1 + 1e-9)


@settings(max_examples=5, deadline=None)
@given(st.sampled_from(list(MODELS)), ROOM, ROOM)
def test_best_pipelines_are_those_of_an_exhaustive_search(name: str, first: float, second: float) -> None:
    model, need = MODELS[name], least_memory(name, (2, 4))
    parts = (FleetPart(with_memory(H100, first * need), 2), FleetPart(with_memory(A100, second * need), 4))
    wanted = wanted_for(model, parts)
    tables = pipelines.build_tables(
        wanted,
        pipelines.enumerate_layouts(wanted, parts, MEGATRON),
        MEGATRON,
        fleet.model_parts(wanted, parts, MEGATRON),
    )
    runs, run_index = stages.runs(model)
    seconds = []
    for table in tables:
        for row in range(len(table.cases)):
            counts = assign(table.costs(row, runs, run_index), round(float(table.cases.accumulate[row])))
            seconds += [HeteroPipeline(table=table, row=row, layers_per_stage=counts).step_seconds] if counts else []
    best = best_pipelines.find_best(tables, wanted, 5)
    assert [pipeline.step_seconds for pipeline in best] == sorted(seconds)[:5]


@pytest.mark.parametrize("name", MODELS)
def test_missing_bytes_are_just_enough(name: str) -> None:
    for share in (0.999, 1.001):
        parts = tuple(
            FleetPart(with_memory(machine, share * least_memory(name, (2, 4))), devices)
            for machine, devices in ((H100, 2), (A100, 4))
        )
        wanted = wanted_for(MODELS[name], parts)
        layouts, part_models = (
            pipelines.enumerate_layouts(wanted, parts, MEGATRON),
            fleet.model_parts(wanted, parts, MEGATRON),
        )
        assert bool(pipelines.build_tables(wanted, layouts, MEGATRON, part_models)) == (share > 1)


# One pipeline


@given(st.sampled_from(list(MODELS)), st.sampled_from([(2, 2), (1, 4), (4, 1)]), st.integers(1, 3))
def test_parts_of_one_machine_equal_one_cluster(name: str, counts: tuple[int, int], micro_batches: int) -> None:
    """Whole nodes of one machine given as two parts: the time and memory of each stage are those of one cluster."""
    parts = tuple(FleetPart(H100, 8 * count) for count in counts)
    wanted = wanted_for(MODELS[name], parts, samples=8 * micro_batches)
    for table in all_tables(MODELS[name], parts, samples=8 * micro_batches):
        depth, layers = len(table.part_of_stage), wanted.model.layers
        pipeline = HeteroPipeline(
            table=table, row=0, layers_per_stage=tuple(len(run) for run in np.array_split(np.arange(layers), depth))
        )
        case = replace(pipeline.case, first_less=column(0), last_less=column(0))
        hardware, values = table.part_models[0].hardware, table.part_models[0].values
        uniform = step_bounds.pipelines(case, step_bounds.parts(case, hardware, values))[0]
        times = pipeline.pipeline
        assert times.micro_batches == uniform.micro_batches
        for part in ("forward", "inputs"):
            assert getattr(times, part) == pytest.approx(getattr(uniform, part) + (part == "inputs") * uniform.weights)
        if float(table.cases.tp[0] * table.cases.cp[0] * table.cases.dp[0]) >= H100.per_node:
            assert np.ravel(times.hop)[:-1] == pytest.approx(uniform.hop)
            assert simulation.simulate([times])[0].wall == pytest.approx(simulation.simulate([uniform])[0].wall)
        for first, stage in ((True, 0), (False, depth - 1)):
            if pipeline.layers_per_stage[stage] * depth == layers:
                memory = float(framework_memory.of_stage(case, first).total[0])
                assert float(pipeline.memory.total[stage]) == pytest.approx(memory)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(list(MODELS)), st.data())
def test_assigned_stage_times_are_those_simulated(name: str, data: st.DataObject) -> None:
    tables = two_parts(name)
    table = data.draw(st.sampled_from(tables))
    row = data.draw(st.integers(0, len(table.cases) - 1))
    pipeline = HeteroPipeline(
        table=table,
        row=row,
        layers_per_stage=data.draw(st.sampled_from(partitions(MODELS[name].layers, len(table.part_of_stage)))),
    )
    times, hops = pipeline.pipeline, np.ravel(pipeline.pipeline.hop)
    assert hops[-1] == 0
    assert pipeline.stage_seconds == pytest.approx(times.forward + times.inputs + hops + np.roll(hops, 1))
    simulated = simulation.simulate([times])[0]
    assert simulated.wall >= np.max(times.micro_batches * pipeline.stage_seconds) * (1 - 1e-9)
    predicted = pipeline_step.predict_step(pipeline, simulated)
    assert spent(predicted) == pytest.approx(predicted.wall, rel=1e-9)
    for entry in predicted.lines:
        assert np.min(entry.seconds) >= 0 <= np.min(entry.hidden), entry


@given(st.sampled_from(list(MODELS)), st.data())
def test_stages_hold_each_weight_once(name: str, data: st.DataObject) -> None:
    """All layers, and one embedding table at either end."""
    table = data.draw(st.sampled_from(two_parts(name)))
    pipeline = HeteroPipeline(
        table=table,
        row=0,
        layers_per_stage=data.draw(st.sampled_from(partitions(MODELS[name].layers, len(table.part_of_stage)))),
    )
    weights = data_parallel.layer_weights(pipeline.case, shapes.weights(pipeline.case))
    layers = sum(float(part[0]) for part in weights) * MODELS[name].layers
    weights = layers + 2 * float(shapes.weights(pipeline.case).table[0])
    assert float(np.sum(pipeline.memory.parameters)) == pytest.approx(
        weights * float(pipeline.case.weight_bytes[0]), rel=1e-9
    )
    assert float(np.sum(pipeline.memory.logits[:-1])) == 0 < float(pipeline.memory.logits[-1])


@given(st.sampled_from(list(MODELS)), st.data())
def test_transfer_between_parts_uses_the_slower_link(name: str, data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(two_parts(name)))
    first, second = ((model.hardware, model.values) for model in table.part_models)
    within = [stages.across(table.cases, part, part) for part in (first, second)]
    assert np.array_equal(stages.across(table.cases, first, second), np.maximum(*within))
    assert np.array_equal(stages.across(table.cases, first, second), stages.across(table.cases, second, first))


def plan_for(name: str, parts: tuple[FleetPart, ...], **options: Any) -> HeteroResult:
    return best_pipelines.find(wanted_for(MODELS[name], parts, **options), parts, MEGATRON)


@settings(max_examples=3, deadline=None)
@given(st.sampled_from(list(MODELS)), st.sampled_from([(2, 4), (2, 2, 2)]), ROOM.filter(lambda factor: factor > 1))
def test_found_pipelines_fit_and_are_consistent(name: str, counts: tuple[int, ...], share: float) -> None:
    need = share * least_memory(name, (2, 4))
    machines = (with_memory(H100, need), A100, with_memory(machine.load("h200"), 2 * need))
    parts = tuple(FleetPart(machine, devices) for machine, devices in zip(machines, counts))
    result = plan_for(name, parts)
    walls = [step.choice.plan.ledger.wall_ns for step in result.pipelines]
    assert walls == sorted(walls)
    for step in result.pipelines:
        job, model = step.choice.plan.job, MODELS[name]
        ranks = job.layout.ranks // job.layout.pp
        by_part = {part: list(run) for part, run in groupby(step.stages, key=lambda stage: stage.part)}
        assert {part: len(run) * ranks for part, run in by_part.items()} == {str(part): part.devices for part in parts}
        assert [stage.first for stage in step.stages] == list(
            np.cumsum([0, *(stage.layers for stage in step.stages[:-1])])
        )
        assert sum(stage.layers for stage in step.stages) == model.layers
        assert sum(stage.experts for stage in step.stages) == (model.layers - model.dense_layers) * bool(model.experts)
        assert all(stage.reserved <= stage.memory * USABLE for stage in step.stages)
        assert step.choice.reserved == pytest.approx(sum(step.choice.plan.memory.values()) * RESERVED, abs=10)
        assert step.choice.reserved in [stage.reserved for stage in step.stages]
        assert all(0 <= stage.idle_ns < walls[-1] for stage in step.stages)


def test_faster_part_or_more_memory_is_never_worse() -> None:
    """By `flow_seconds`, the objective of the partition, for each layout."""
    model, need = MODELS["dense"], 1.3 * least_memory("dense", (2, 4))
    wanted = wanted_for(model, (FleetPart(H100, 2), FleetPart(A100, 4)))
    runs, run_index = stages.runs(model)

    def flows(second: Machine) -> dict[tuple[Any, ...], float]:
        parts = (FleetPart(with_memory(H100, need), 2), FleetPart(second, 4))
        part_models, layouts = (
            fleet.model_parts(wanted, parts, MEGATRON),
            pipelines.enumerate_layouts(wanted, parts, MEGATRON),
        )
        seconds_by_case = {}
        for table in pipelines.build_tables(wanted, layouts, MEGATRON, part_models):
            for row, key in enumerate(axes(table)):
                counts = assign(table.costs(row, runs, run_index), round(float(table.cases.accumulate[row])))
                if counts:
                    seconds_by_case[(*table.part_of_stage, *key)] = HeteroPipeline(
                        table=table, row=row, layers_per_stage=counts
                    ).flow_seconds
        return seconds_by_case

    slow, roomy = flows(with_memory(A100, need)), flows(with_memory(A100, 4 * need))
    double = msgspec.structs.replace(A100.device.peak["bfloat16"], value=2 * A100.device.peak["bfloat16"].value)
    base = with_memory(A100, need)
    fast_device = msgspec.structs.replace(base.device, peak={"bfloat16": double})
    quick = flows(msgspec.structs.replace(base, device=fast_device))
    assert slow
    assert all(
        quick[key] <= seconds * (1 + 1e-6) and roomy[key] <= seconds * (1 + 1e-6) for key, seconds in slow.items()
    )


def verdict_of(result: HeteroResult) -> str:
    plans = from_mixed(result, "these", NO_BUDGET)
    assert plans.heterogeneous is not None
    return verdict(plans, plans.heterogeneous)


def test_verdict_compares_mixed_and_single_parts() -> None:
    slow = msgspec.structs.replace(A100.device.peak["bfloat16"], value=1e11)
    crawling = msgspec.structs.replace(A100, device=msgspec.structs.replace(A100.device, peak={"bfloat16": slow}))
    crawling = msgspec.structs.replace(crawling, name="crawling")
    assert verdict_of(plan_for("dense", (FleetPart(H100, 4), FleetPart(crawling, 4)))).startswith(
        "Mixing is not worth it: h100:4"
    )
    big = MODELS["dense"]
    parts = (FleetPart(H100, 8), FleetPart(H100, 8))
    wanted = wanted_for(big, parts, samples=4096)._replace(seq_len=4096)
    result = best_pipelines.find(wanted, parts, MEGATRON)
    together = result.pipelines[0].choice.bill.tokens_per_s
    alone = [part.choice.bill.tokens_per_s for part in result.alone if part.choice]
    sentence = verdict_of(result)
    assert f"{together / max(alone):.2f} times as many tokens a second as" in sentence
    assert f"this is {100 * together / sum(alone):.0f} % of that" in sentence
    assert f"at {2 * max(alone) / together:.2f} times its dollars a token" in sentence
    assert "(batch_shares): 1:1 for replicas on h100:h100" in sentence


# Launch files of frameworks


@given(st.lists(st.integers(1, 30), min_size=2, max_size=12))
def test_launch_files_have_the_layers_of_each_stage(counts: list[int]) -> None:
    args = uneven_stages.megatron("--num-layers 3\n--account-for-loss-in-pipeline-split\n--bf16\n", counts)
    assert "--account-for" not in args
    layout = args.split("--pipeline-model-parallel-layout ")[1].strip().strip("'")
    assert megatron_stages.read(layout, sum(counts), "here") == counts
    written_out = re.sub(r"(.)\*(\d+)", lambda match: match[1] * int(match[2]), layout)  # Megatron's own rule
    stage_texts = written_out.split("|")
    assert stage_texts[0].startswith("E")
    assert stage_texts[-1].endswith("L")
    assert [stage.count("t") for stage in stage_texts] == counts
    assert set(written_out) <= set("EtL|")
    titan = tomllib.loads(uneven_stages.torchtitan("[training]\na = 1\n\n[parallelism]\nb = 2\n", counts))
    parts = titan["parallelism"]["module_fqns_per_model_part"]
    assert titan["parallelism"]["b"] == 2
    names = [name for part in parts for name in part]
    assert names == ["tok_embeddings", *(f"layers.{layer}" for layer in range(sum(counts))), "norm", "output"]
    assert [sum(name.startswith("layers.") for name in part) for part in parts] == counts


ASKED = ("plan", "llama3-8b", "--machine", "h100:8,a100:16", "--batch", "64", "--seq-len", "2048")


@pytest.mark.parametrize("framework", ["", "torchtitan"])
def test_command_prints_and_writes_plans(framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = ("--for", framework) if framework else ()
    out = tmp_path / "best"
    assert answer([*ASKED, *named, "--tokens", "1e9", "--out", str(out), "--full"]) == 0
    printed = capsys.readouterr()
    for part in ("Stages of the fastest", "Together and apart", "Mixing is", "ns exactly", "h100:8", "+ embedding"):
        assert part in printed.out
    assert "Rank order" in printed.err
    assert answer([*ASKED, *named, "--json"]) == 0
    printed = capsys.readouterr().out
    plain = json.loads(printed)
    first = plain["choices"][0]
    counts = [stage["layers"] for stage in plain["heterogeneous"]["stages"][0]]
    assert sum(counts) == 32
    written = out.read_text()
    if framework:
        assert len(tomllib.loads(written)["parallelism"]["module_fqns_per_model_part"]) == len(counts)
    else:
        assert "|".join(f"t*{count}" for count in counts) in written
        (tmp_path / "their.args").write_text(written)
        assert answer(["plan", "check", str(tmp_path / "their.args"), "--machine", "h100", "--devices", "24"]) == 0
        assert "predicted with layers divided evenly" in capsys.readouterr().err
    assert first["plan"]["job"]["layout"]["pp"] == len(counts)
    assert [part["part"] for part in plain["heterogeneous"]["parts_alone"]] == ["h100:8", "a100:16"]
    (tmp_path / "plans.json").write_text(printed)
    assert read_plans(tmp_path / "plans.json") is not None
    assert answer(["report", str(tmp_path / "plans.json"), "--out", str(tmp_path / "page.html")]) == 0
    assert "Together and apart" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("changed", "code", "values"),
    [
        ({"--machine": "h100:8,a100"}, "bad-input", ["--machine h100:8,a100", "a100:8"]),
        ({"--machine": "h100:8,"}, "bad-input", ["--machine h100:8,", "NAME:8"]),
        ({"--machine": "h100:8,a100:many"}, "bad-input", ["--machine h100:8,a100:many", "'many'", "a100:8"]),
        ({"--machine": "h100:8,a100:0"}, "bad-input", ["--machine h100:8,a100:0", "'0'", "a100:8"]),
        ({"--machine": "h100:8,a100:１６"}, "bad-input", ["'１６'", "a100:8"]),
        ({"--machine": "h100:8,H100-SXM:8"}, "bad-input", ["1 kind", "--machine h100 --devices 16"]),
        ({"--machine": "h100:8,a100:8,h100:16"}, "bad-input", ["2 kinds", "--machine h100:24,a100:8"]),
        ({"--machine": "h100:"}, "bad-input", ["--machine h100 --devices N"]),
        ({"--machine": "h100-sxm:8"}, "bad-input", ["--machine h100-sxm --devices 8"]),
        ({"--machine": "h100:８"}, "bad-input", ["--machine h100 --devices N"]),
        ({"--machine": "h100:8,a10:16"}, "unknown-name", ["'a10'", "'a100'"]),
        ({"--machine": "h100:8,mi300x:8"}, "bad-input", ["AMD", "NVIDIA"]),
        ({"--machine": "h100:8,a100:8,h200:8,b200:8,h800:8"}, "bad-input", ["5 parts", "120 orders", 4]),
        ({"--machine": "h100:31,a100:32"}, "bad-job", ["h100:31", "a100:32", "1 ranks", "63 stages", "32 layers"]),
        ({"--devices": "32"}, "bad-input", ["--devices 32", "h100:8,a100:16", "8 + 16 = 24"]),
        ({"--fix": "pp=2"}, "bad-job", ["pp 2", "12 ranks", "h100", "8 % 12 = 8"]),
        ({"--fix": "pp=5"}, "bad-job", ["24 devices % pp 5 = 4"]),
        ({"--fix": "interleave=2"}, "bad-job", ["interleave = 2", "--fix interleave"]),
        ({"--for": "deepspeed"}, "bad-input", ["--for deepspeed", "megatron, torchtitan"]),
        ({"--for": "trainyard"}, "bad-input", ["--for trainyard", "megatron, torchtitan"]),
        ({"--machine": "h100:1,a100:1", "--batch": "1"}, "bad-job",
         ["h100:1", "a100:1", "3 layouts", "11.7 GB", "h100:2,a100:2"]),
        ({"--out": "/nowhere/x.args"}, "not-writable", ["/nowhere/x.args"]),
    ],
    ids=str,
)  # fmt: skip
def test_bad_input_is_reported(
    changed: dict[str, str | None], code: str, values: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    options = dict(zip(ASKED[2::2], ASKED[3::2])) | changed
    flags = [word for flag, value in options.items() for word in (flag, value) if word is not None]
    assert answer([*ASKED[:2], *flags]) == (4 if code == "not-writable" else 2)
    printed = capsys.readouterr()
    assert code_of(printed.err) == code
    assert missing_values(printed.err, *values) == []
    assert not printed.out


def test_part_without_a_link_between_nodes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = machine.known()["a100"].read_text("utf-8")
    path = tmp_path / "one-node.toml"
    path.write_text(re.sub(r"\[inter_node\]\n(.+\n)+", "", text).replace('name = "a100"', 'name = "one-node"'), "utf-8")
    flags = [word for flag, value in zip(ASKED[2::2], ASKED[3::2]) if flag != "--machine" for word in (flag, value)]
    assert answer([*ASKED[:2], *flags, "--machine", f"h100:8,{path}:8"]) == 2
    assert missing_values(capsys.readouterr().err, "one-node", "[inter_node]") == []
