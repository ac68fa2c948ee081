"""Clusters of unlike parts: what is found is the best of all, it fits, and a part like the others changes nothing."""

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
from trainyard.job import Model
from trainyard.machine import Machine
from trainyard.predict.configs import uneven_stages
from trainyard.predict.configs.megatron import megatron_stages
from trainyard.predict.hetero import best_pipelines, fleet, pipeline_step, pipelines
from trainyard.predict.hetero.assign_layers import assign
from trainyard.predict.hetero.best_pipelines import HeteroResult
from trainyard.predict.hetero.fleet import FleetPart
from trainyard.predict.hetero.pipeline_step import HeteroPipeline
from trainyard.predict.hetero.pipelines import Lines
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
    "dense": msgspec.structs.replace(DENSE, layers=6, width=512, ffn=2048, head_dim=64, vocab=4096),
    "experts": msgspec.structs.replace(EXPERTS, layers=5, dense_layers=2, width=512, ffn=2048, head_dim=64),
    "latent": LATENT,
}
MEGATRON = FRAMEWORKS["megatron"]
A100, H100 = machine.load("a100"), machine.load("h100")


def sized(like: Machine, memory_bytes: float) -> Machine:
    less = msgspec.structs.replace(like.device.memory, value=memory_bytes)
    return msgspec.structs.replace(like, device=msgspec.structs.replace(like.device, memory=less))


def wanted_for(model: Model, parts: tuple[FleetPart, ...], **more: Any) -> PlannerInput:
    return PlannerInput(model, sum(one.devices for one in parts), 8, more.pop("samples", 8), 256, **more)


def all_lines(model: Model, parts: tuple[FleetPart, ...], **more: Any) -> list[Lines]:
    wanted = wanted_for(model, parts, **more)
    every = pipelines.split(wanted, parts, MEGATRON)
    return pipelines.lines(wanted, every, MEGATRON, fleet.places(wanted, parts, MEGATRON))


@cache
def two_parts(name: str) -> list[Lines]:
    return all_lines(MODELS[name], (FleetPart(H100, 8), FleetPart(A100, 16)), samples=16)


def cuts(layers: int, depth: int) -> list[tuple[int, ...]]:
    return [tuple(np.diff([0, *at, layers]).tolist()) for at in combinations(range(1, layers), depth - 1)]


def fits(one: HeteroPipeline) -> bool:
    """Each stage by itself, as its device has memory."""
    depth = len(one.counts)
    for place, of in enumerate(one.line.of):
        run = StageLayers(*(column(count[place]) for count in one.run))
        held = stages.memory(one.case, run, column(depth - place), column(place == 0)).total
        if float(held[0]) * RESERVED > one.line.where[of].hardware.memory[0] * USABLE:
            return False
    return True


def axes(line: Lines) -> list[tuple[int, ...]]:
    """Each case's row of the space."""
    return [tuple(HeteroPipeline(line=line, row=row, counts=()).axes.values()) for row in range(len(line.cases))]


# The search


@given(
    st.lists(
        st.sampled_from([FleetPart(H100, 8), FleetPart(H100, 16), FleetPart(A100, 8)]), min_size=1, max_size=4
    ).map(tuple)
)
def test_parts_stand_in_every_order_once(parts: tuple[FleetPart, ...]) -> None:
    found = [[str(parts[at]) for at in order] for order in fleet.orders(parts)]
    assert sorted(found) == sorted(map(list, {tuple(map(str, order)) for order in permutations(parts)}))


def whole_space(wanted: PlannerInput, parts: tuple[FleetPart, ...]) -> set[tuple[int, ...]]:
    """Of the whole space of so many devices those whose stages are whole in each part, one by one."""
    found = set()
    for per_node in {one.machine.per_node for one in parts}:
        every = layout_space.space(wanted._replace(per_node=per_node))
        every = every.keep(MEGATRON.allows(wanted, every))
        for place in range(len(every)):
            row = every.row(place)
            ranks = wanted.devices // row["pp"]
            if (
                row["pp"] > 1
                and schedules.SCHEDULES[row["schedule"]] == "1f1b"
                and all(one.devices % ranks == 0 for one in parts)
            ):
                found.add(tuple(row.values()))
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("counts", [(4, 8), (2, 2, 4), (3, 5)], ids=str)
def test_the_space_is_the_whole_space(name: str, counts: tuple[int, ...]) -> None:
    four = msgspec.structs.replace(A100, per_node=4)
    parts = tuple(FleetPart(one, count) for one, count in zip((H100, four, A100), counts))
    wanted = wanted_for(MODELS[name], parts)
    some = pipelines.split(wanted, parts, MEGATRON)
    rows = [tuple(some.row(place).values()) for place in range(len(some))]
    assert len(rows) == len(set(rows))
    assert set(rows) == whole_space(wanted, parts)


@cache
def least(name: str, counts: tuple[int, int], samples: int = 8) -> float:
    """Bytes of a device with which one pipeline fits."""
    parts = (FleetPart(sized(H100, 1), counts[0]), FleetPart(sized(A100, 1), counts[1]))
    wanted = wanted_for(MODELS[name], parts, samples=samples)
    where = fleet.places(wanted, parts, MEGATRON)
    return pipelines.missing(wanted, pipelines.split(wanted, parts, MEGATRON), MEGATRON, where) / USABLE


ROOM = st.sampled_from([0.7, 1.01, 1.2, 1.5, 2.0, 100.0])


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(list(MODELS)), ROOM, ROOM, st.sampled_from([(1, 2), (2, 2), (2, 1)]), st.sampled_from([2, 8]))
def test_no_division_is_better_and_none_below_the_bound(
    name: str, mine: float, other: float, counts: tuple[int, int], samples: int
) -> None:
    """Of some of the layouts, in every order of the parts, all divisions that memory holds are tried."""
    need, model = least(name, counts, samples), MODELS[name]
    parts = (FleetPart(sized(H100, mine * need), counts[0]), FleetPart(sized(A100, other * need), counts[1]))
    wanted = wanted_for(model, parts, samples=samples)
    every = pipelines.split(wanted, parts, MEGATRON)
    every = every.keep(np.arange(len(every)) % 7 == 0)
    where = fleet.places(wanted, parts, MEGATRON)
    found = {
        (tuple(line.of), row): line for line in pipelines.lines(wanted, every, MEGATRON, where) for row in axes(line)
    }
    roomy = tuple(one._replace(hardware=replace(one.hardware, memory=column(1e15))) for one in where)
    some, place = stages.runs(model)
    for full in pipelines.lines(wanted, every, MEGATRON, roomy):
        line = replace(full, where=where)
        for at, row in enumerate(axes(line)):
            ways = [HeteroPipeline(line=line, row=at, counts=one) for one in cuts(model.layers, len(line.of))]
            best = min((one.flow for one in ways if fits(one)), default=np.inf)
            chosen = assign(line.costs(at, some, place), round(float(line.cases.accumulate[at])))
            assert (chosen is None) == (best == np.inf)
            if chosen is None:
                continue
            one = HeteroPipeline(line=line, row=at, counts=chosen)
            assert fits(one)
            assert one.flow == pytest.approx(best, rel=1e-6)
            mine_ = found[tuple(line.of), row]
            assert mine_.bound[axes(mine_).index(row)] <= best * (1 + 1e-9)


@settings(max_examples=5, deadline=None)
@given(st.sampled_from(list(MODELS)), ROOM, ROOM)
def test_the_best_are_the_best_of_all(name: str, mine: float, other: float) -> None:
    model, need = MODELS[name], least(name, (2, 4))
    parts = (FleetPart(sized(H100, mine * need), 2), FleetPart(sized(A100, other * need), 4))
    wanted = wanted_for(model, parts)
    found = pipelines.lines(
        wanted, pipelines.split(wanted, parts, MEGATRON), MEGATRON, fleet.places(wanted, parts, MEGATRON)
    )
    some, place = stages.runs(model)
    every = []
    for line in found:
        for row in range(len(line.cases)):
            counts = assign(line.costs(row, some, place), round(float(line.cases.accumulate[row])))
            every += [HeteroPipeline(line=line, row=row, counts=counts).seconds] if counts else []
    best = best_pipelines.best(found, wanted, 5)
    assert [one.seconds for one in best] == sorted(every)[:5]


@pytest.mark.parametrize("name", MODELS)
def test_what_is_missing_is_what_would_do(name: str) -> None:
    for share in (0.999, 1.001):
        parts = tuple(
            FleetPart(sized(like, share * least(name, (2, 4))), many) for like, many in ((H100, 2), (A100, 4))
        )
        wanted = wanted_for(MODELS[name], parts)
        every, where = pipelines.split(wanted, parts, MEGATRON), fleet.places(wanted, parts, MEGATRON)
        assert bool(pipelines.lines(wanted, every, MEGATRON, where)) == (share > 1)


# One pipeline


@given(st.sampled_from(list(MODELS)), st.sampled_from([(2, 2), (1, 4), (4, 1)]), st.integers(1, 3))
def test_parts_that_are_alike_are_one_cluster(name: str, counts: tuple[int, int], many: int) -> None:
    """Whole nodes of one machine, named as two parts: each stage takes and holds what it does in one."""
    parts = tuple(FleetPart(H100, 8 * count) for count in counts)
    wanted = wanted_for(MODELS[name], parts, samples=8 * many)
    for line in all_lines(MODELS[name], parts, samples=8 * many):
        depth, layers = len(line.of), wanted.model.layers
        one = HeteroPipeline(
            line=line, row=0, counts=tuple(len(some) for some in np.array_split(np.arange(layers), depth))
        )
        case = replace(one.case, ends=column(0))
        hardware, values = line.where[0].hardware, line.where[0].values
        like = step_bounds.pipelines(case, step_bounds.parts(case, hardware, values))[0]
        mine = one.pipeline
        assert mine.micro_batches == like.micro_batches
        for part in ("forward", "inputs"):
            assert getattr(mine, part) == pytest.approx(getattr(like, part) + (part == "inputs") * like.weights)
        if float(line.cases.tp[0] * line.cases.cp[0] * line.cases.dp[0]) >= H100.per_node:
            assert np.ravel(mine.hop)[:-1] == pytest.approx(like.hop)
            assert simulation.simulate([mine])[0].wall == pytest.approx(simulation.simulate([like])[0].wall)
        for first, place in ((True, 0), (False, depth - 1)):
            if one.counts[place] * depth == layers:
                whole = float(framework_memory.of_stage(case, first).total[0])
                assert float(one.held.total[place]) == pytest.approx(whole)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(list(MODELS)), st.data())
def test_what_is_assigned_is_what_is_run(name: str, data: st.DataObject) -> None:
    found = two_parts(name)
    line = data.draw(st.sampled_from(found))
    row = data.draw(st.integers(0, len(line.cases) - 1))
    one = HeteroPipeline(line=line, row=row, counts=data.draw(st.sampled_from(cuts(MODELS[name].layers, len(line.of)))))
    made, hops = one.pipeline, np.ravel(one.pipeline.hop)
    assert hops[-1] == 0
    assert one.each == pytest.approx(made.forward + made.inputs + hops + np.roll(hops, 1))
    ran = simulation.simulate([made])[0]
    assert ran.wall >= np.max(made.micro_batches * one.each) * (1 - 1e-9)
    predicted = pipeline_step.predicted(one, ran)
    assert spent(predicted) == pytest.approx(predicted.wall, rel=1e-9)
    for line_ in predicted.lines:
        assert np.min(line_.seconds) >= 0 <= np.min(line_.hidden), line_


@given(st.sampled_from(list(MODELS)), st.data())
def test_stages_hold_the_model_once(name: str, data: st.DataObject) -> None:
    """All layers, and a table at either end."""
    line = data.draw(st.sampled_from(two_parts(name)))
    one = HeteroPipeline(line=line, row=0, counts=data.draw(st.sampled_from(cuts(MODELS[name].layers, len(line.of)))))
    layers = sum(float(part[0]) for part in data_parallel.layer_weights(one.case)) * MODELS[name].layers
    whole = layers + 2 * float(shapes.weights(one.case).table[0])
    assert float(np.sum(one.held.parameters)) == pytest.approx(whole * float(one.case.weight_bytes[0]), rel=1e-9)
    assert float(np.sum(one.held.logits[:-1])) == 0 < float(one.held.logits[-1])


@given(st.sampled_from(list(MODELS)), st.data())
def test_between_parts_the_slower_link_counts(name: str, data: st.DataObject) -> None:
    line = data.draw(st.sampled_from(two_parts(name)))
    one, other = ((where.hardware, where.values) for where in line.where)
    alike = [stages.across(line.cases, each, each) for each in (one, other)]
    assert np.array_equal(stages.across(line.cases, one, other), np.maximum(*alike))
    assert np.array_equal(stages.across(line.cases, one, other), stages.across(line.cases, other, one))


def found_for(name: str, parts: tuple[FleetPart, ...], **more: Any) -> HeteroResult:
    return best_pipelines.find(wanted_for(MODELS[name], parts, **more), parts, MEGATRON)


@settings(max_examples=3, deadline=None)
@given(st.sampled_from(list(MODELS)), st.sampled_from([(2, 4), (2, 2, 2)]), ROOM.filter(lambda one: one > 1))
def test_what_is_offered_fits_and_balances(name: str, counts: tuple[int, ...], share: float) -> None:
    need = share * least(name, (2, 4))
    machines = (sized(H100, need), A100, sized(machine.load("h200"), 2 * need))
    parts = tuple(FleetPart(one, many) for one, many in zip(machines, counts))
    found = found_for(name, parts)
    walls = [one.choice.plan.ledger.wall_ns for one in found.pipelines]
    assert walls == sorted(walls)
    for one in found.pipelines:
        job, model = one.choice.plan.job, MODELS[name]
        ranks = job.layout.ranks // job.layout.pp
        by_part = {part: list(some) for part, some in groupby(one.stages, key=lambda stage: stage.part)}
        assert {part: len(some) * ranks for part, some in by_part.items()} == {str(one): one.devices for one in parts}
        assert [stage.first for stage in one.stages] == list(
            np.cumsum([0, *(stage.layers for stage in one.stages[:-1])])
        )
        assert sum(stage.layers for stage in one.stages) == model.layers
        assert sum(stage.experts for stage in one.stages) == (model.layers - model.dense_layers) * bool(model.experts)
        assert all(stage.reserved <= stage.memory * USABLE for stage in one.stages)
        assert one.choice.reserved == pytest.approx(sum(one.choice.plan.memory.values()) * RESERVED, abs=10)
        assert one.choice.reserved in [stage.reserved for stage in one.stages]
        assert all(0 <= stage.idle_ns < walls[-1] for stage in one.stages)


def test_a_faster_part_or_one_of_more_memory_is_no_worse() -> None:
    """By what layers are divided by: of each layout with the assignment that is found."""
    model, need = MODELS["dense"], 1.3 * least("dense", (2, 4))
    wanted = wanted_for(model, (FleetPart(H100, 2), FleetPart(A100, 4)))
    some, place = stages.runs(model)

    def flows(other: Machine) -> dict[tuple[Any, ...], float]:
        parts = (FleetPart(sized(H100, need), 2), FleetPart(other, 4))
        where, every = fleet.places(wanted, parts, MEGATRON), pipelines.split(wanted, parts, MEGATRON)
        found = {}
        for line in pipelines.lines(wanted, every, MEGATRON, where):
            for row, key in enumerate(axes(line)):
                counts = assign(line.costs(row, some, place), round(float(line.cases.accumulate[row])))
                if counts:
                    found[(*line.of, *key)] = HeteroPipeline(line=line, row=row, counts=counts).flow
        return found

    slow, roomy = flows(sized(A100, need)), flows(sized(A100, 4 * need))
    double = msgspec.structs.replace(A100.device.peak["bfloat16"], value=2 * A100.device.peak["bfloat16"].value)
    quick = flows(msgspec.structs.replace(
        sized(A100, need), device=msgspec.structs.replace(sized(A100, need).device, peak={"bfloat16": double})
    ))  # fmt: skip
    assert slow
    assert all(
        quick[key] <= seconds * (1 + 1e-6) and roomy[key] <= seconds * (1 + 1e-6) for key, seconds in slow.items()
    )


def said_of(found: HeteroResult) -> str:
    plans = from_mixed(found, "these", 0)
    assert plans.unlike is not None
    return verdict(plans, plans.unlike)


def test_whether_it_is_worth_it_is_said() -> None:
    slow = msgspec.structs.replace(A100.device.peak["bfloat16"], value=1e11)
    crawling = msgspec.structs.replace(A100, device=msgspec.structs.replace(A100.device, peak={"bfloat16": slow}))
    crawling = msgspec.structs.replace(crawling, name="crawling")
    assert said_of(found_for("dense", (FleetPart(H100, 4), FleetPart(crawling, 4)))).startswith(
        "Mixing is not worth it: h100:4"
    )
    big = MODELS["dense"]
    parts = (FleetPart(H100, 8), FleetPart(H100, 8))
    wanted = wanted_for(big, parts, samples=4096)._replace(seq_len=4096)
    found = best_pipelines.find(wanted, parts, MEGATRON)
    together = found.pipelines[0].choice.bill.tokens_per_s
    apart = [one.choice.bill.tokens_per_s for one in found.alone if one.choice]
    said = said_of(found)
    assert f"{together / max(apart):.2f} times as many tokens a second as" in said
    assert f"this is {100 * together / sum(apart):.0f} % of that" in said
    assert f"at {2 * max(apart) / together:.2f} times its dollars a token" in said


# What frameworks are told


@given(st.lists(st.integers(1, 30), min_size=2, max_size=12))
def test_frameworks_are_told_the_layers_of_each_stage(counts: list[int]) -> None:
    args = uneven_stages.megatron("--num-layers 3\n--account-for-loss-in-pipeline-split\n--bf16\n", counts)
    assert "--account-for" not in args
    layout = args.split("--pipeline-model-parallel-layout ")[1].strip().strip("'")
    assert megatron_stages.read(layout, sum(counts), "here") == counts
    written_out = re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), layout)  # Megatron's own rule
    said = written_out.split("|")
    assert said[0].startswith("E")
    assert said[-1].endswith("L")
    assert [one.count("t") for one in said] == counts
    assert set(written_out) <= set("EtL|")
    titan = tomllib.loads(uneven_stages.torchtitan("[training]\na = 1\n\n[parallelism]\nb = 2\n", counts))
    parts = titan["parallelism"]["module_fqns_per_model_part"]
    assert titan["parallelism"]["b"] == 2
    names = [name for part in parts for name in part]
    assert names == ["tok_embeddings", *(f"layers.{layer}" for layer in range(sum(counts))), "norm", "output"]
    assert [sum(name.startswith("layers.") for name in part) for part in parts] == counts


ASKED = ("plan", "llama3-8b", "--machine", "h100:8,a100:16", "--batch", "64", "--seq-len", "2048")


@pytest.mark.parametrize("framework", ["", "torchtitan"])
def test_the_command_prints_and_writes(framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = ("--for", framework) if framework else ()
    out = tmp_path / "best"
    assert answer([*ASKED, *named, "--tokens", "1e9", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    for part in ("Stages of the fastest", "Together and apart", "Mixing is", "ns exactly", "h100:8", "+ embedding"):
        assert part in printed.out
    assert "Rank order" in printed.err
    assert answer([*ASKED, *named, "--json"]) == 0
    printed = capsys.readouterr().out
    plain = json.loads(printed)
    first = plain["choices"][0]
    counts = [stage["layers"] for stage in plain["unlike"]["stages"][0]]
    assert sum(counts) == 32
    written = out.read_text()
    if framework:
        assert len(tomllib.loads(written)["parallelism"]["module_fqns_per_model_part"]) == len(counts)
    else:
        assert "|".join(f"t*{count}" for count in counts) in written
        (tmp_path / "their.args").write_text(written)
        assert answer(["plan", str(tmp_path / "their.args"), "--machine", "h100", "--devices", "24", "--check"]) == 0
        assert "predicted with layers divided evenly" in capsys.readouterr().err
    assert first["plan"]["job"]["layout"]["pp"] == len(counts)
    assert [one["part"] for one in plain["unlike"]["apart"]] == ["h100:8", "a100:16"]
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
        ({"--machine": "h100:8,a10:16"}, "unknown-name", ["'a10'", "'a100'"]),
        ({"--machine": "h100:8,mi300x:8"}, "bad-input", ["AMD", "NVIDIA"]),
        ({"--machine": "h100:8,v100-32gb:8"}, "bad-input", ["v100-32gb", "[between]"]),
        ({"--machine": "h100:8,a100:8,h200:8,b200:8,h800:8"}, "bad-input", ["5 parts", "120 orders", 4]),
        ({"--machine": "h100:31,a100:32"}, "bad-job", ["h100:31", "a100:32", "1 ranks", "63 stages", "32 layers"]),
        ({"--devices": "32"}, "bad-input", ["--devices 32", "h100:8,a100:16", "8 + 16 = 24"]),
        ({"--fix": "pp=2"}, "bad-job", ["pp 2", "12 ranks", "h100", "8 % 12 = 8"]),
        ({"--fix": "pp=5"}, "bad-job", ["24 devices % pp 5 = 4"]),
        ({"--fix": "interleave=2"}, "bad-job", ["interleave = 2", "--fix interleave"]),
        ({"--for": "deepspeed"}, "bad-input", ["--for deepspeed", "megatron, torchtitan"]),
        ({"--for": "trainyard"}, "bad-input", ["--for trainyard", "megatron, torchtitan"]),
        ({"--machine": "h100:1,a100:1", "--batch": "1"}, "bad-job",
         ["h100:1", "a100:1", "3 layouts", "10.9 GiB", "h100:2,a100:2"]),
        ({"--check": None}, "bad-input", ["--check", "--machine h100:8,a100:16"]),
        ({"--out": "/nowhere/x.args"}, "not-writable", ["/nowhere/x.args"]),
    ],
    ids=str,
)  # fmt: skip
def test_bad_input_is_told(
    changed: dict[str, str | None], code: str, values: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = dict(zip(ASKED[2::2], ASKED[3::2])) | changed
    flags = [word for flag, value in asked.items() for word in (flag, value) if word is not None]
    assert answer([*ASKED[:2], *flags]) == (4 if code == "not-writable" else 2)
    printed = capsys.readouterr()
    assert code_of(printed.err) == code
    assert missing_values(printed.err, *values) == []
    assert not printed.out
