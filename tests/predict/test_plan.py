"""Planning: predictions balance and agree with the workloads' counts, and the search is exhaustive."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from dataclasses import fields
from functools import partial
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any

import click
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import code_of, missing_values, refused
from trainyard import job_file as jobs
from trainyard import machine
from trainyard.api.fabric_options import Fabric
from trainyard.api.fine_tune import FineTune
from trainyard.api.run_costs import RunCosts
from trainyard.api.training_options import TrainingOptions
from trainyard.cli.main import answer
from trainyard.cli.plan import command
from trainyard.errors import BadInput, BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.ledger import diff
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.economics import step_cost
from trainyard.predict.inputs import cases, constant_sets, hardware, layout_space
from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import Keeps, PlannerInput
from trainyard.predict.memory import framework_memory
from trainyard.predict.memory.framework_memory import USABLE
from trainyard.predict.pipeline import schedules  # fmt: skip
from trainyard.predict.search.layout_cost import cost_job
from trainyard.predict.search.search import SearchResult, search
from trainyard.predict.time import data_parallel, predicted_ledger, shapes, step
from trainyard.recipe import Recipe
from trainyard.report.plans.plans_file import read as read_plans
from trainyard.workloads.ops import matrices, transformer_ops

DENSE = Model(layers=4, hidden_size=64, ffn_hidden_size=192, heads=8, kv_heads=4, head_dim=8, vocab=512)
EXPERTS = Model(
    layers=4, hidden_size=64, ffn_hidden_size=192, heads=8, kv_heads=8, head_dim=8, vocab=512, experts=8, top_k=2,
    moe_ffn_hidden_size=96,
    shared_experts=1, dense_layers=1,
)  # fmt: skip
TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
LATENT = msgspec.structs.replace(EXPERTS, kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=4, v_head_dim=8)
GPT = Model(
    layers=4, hidden_size=64, ffn_hidden_size=256, heads=8, kv_heads=8, head_dim=8, vocab=512, mlp="gelu",
    position="learned",
    norm="layer", tie_word_embeddings=True,
)  # fmt: skip
MODELS = {"dense": DENSE, "experts": EXPERTS, "latent": LATENT, "gpt": GPT}
H100 = machine.load("h100")
WHERE = hardware.of_machine(H100, "bfloat16")


def job(model: Model = DENSE, recipe: dict[str, Any] | None = None, **layout: Any) -> Job:
    keys = {"seq_len": 256, "tokens_per_step": 256 * 16, "micro_batch_size": 1, "dtype": "bfloat16"} | (recipe or {})
    return Job(model=model, layout=Layout(**layout), recipe=Recipe(**keys))


def spent(predicted: step.StepTime) -> np.ndarray:
    return sum((np.asarray(line.seconds) for line in predicted.lines), np.zeros(1))


# Agreement with the workloads' counts


DENSE_LAYOUTS = [{}, {"dp_shard": 4}, {"tp": 2, "sequence_parallel": True}, {"cp": 2}, {"pp": 2}]
EXPERT_LAYOUT = {"dp_shard": 2, "ep": 2}


@pytest.mark.parametrize(
    ("name", "layout"),
    [*product(MODELS, DENSE_LAYOUTS),
     *((name, EXPERT_LAYOUT) for name, model in MODELS.items() if model.experts)],
    ids=str,
)  # fmt: skip
def test_model_flops_equal_those_of_the_workload(name: str, layout: dict[str, Any]) -> None:
    """For any layout: the sum over all ranks is the same. Half of the scores approximates the causal mask."""
    expected = transformer_ops.model_flops(job(MODELS[name]))
    case = cases.of_jobs([job(MODELS[name], **layout)])
    margin = 1 + 1 / 256  # (s + 1) / 2 keys of a query, for s / 2
    assert expected / margin < float(np.ravel(step_cost.model_flops(case))[0]) < expected * margin


@pytest.mark.parametrize("name", MODELS)
def test_weights_equal_the_parameter_count(name: str) -> None:
    case = cases.of_jobs([job(MODELS[name])])
    common, expert = data_parallel.layer_weights(case, shapes.weights(case))
    tables = shapes.weights(case).table * data_parallel.count_tables(case)
    position_weights = 256 * 64 if name == "gpt" else 0
    weights = float(((common + expert) * case.layers + tables)[0]) + position_weights
    assert weights == pytest.approx(matrices.parameters(MODELS[name], 256), rel=5e-3)


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-70b", "llama3-405b", "deepseek-v3", "mixtral-8x7b", "qwen3-8b"])
def test_weights_of_bundled_models_match_published_counts(name: str) -> None:
    preset = presets.load(name)
    model = msgspec.convert(preset.model, Model)
    case = cases.of_jobs([job(model)])
    common, expert = data_parallel.layer_weights(case, shapes.weights(case))
    weights = float(
        ((common + expert) * case.layers + shapes.weights(case).table * data_parallel.count_tables(case))[0]
    )
    assert preset.parameters is not None
    assert weights == pytest.approx(preset.parameters.value, rel=0.02)


# Properties

SIZES = st.sampled_from([1, 2, 4, 8, 16])
ROWS = st.fixed_dictionaries(
    {
        "tp": SIZES, "pp": SIZES, "cp": SIZES, "ep": SIZES, "dp_replicate": SIZES, "dp_shard": SIZES,
        "zero": st.sampled_from([1, 2, 3]), "interleave": st.sampled_from([1, 2]), "micro_batch_size": SIZES,
        "activation_checkpoint": st.sampled_from([0, 1, 2]), "offload": st.sampled_from([0, 1]),
    }
)  # fmt: skip


def scheduled(row: dict[str, int]) -> dict[str, int]:
    """The row with the schedule that frameworks run for it."""
    return row | {"schedule": schedules.SCHEDULES.index("interleaved" if row["interleave"] > 1 else "1f1b")}


def single_case(model: Model, row: dict[str, int], flash: int = 1, low: int = 0, sp: int = 1) -> Cases:
    wanted = PlannerInput(model, 1, 8, row["dp_replicate"] * row["dp_shard"] * row["micro_batch_size"] * 4, 512)
    case = layout_space.as_cases(
        wanted,
        layout_space.LayoutSpace({name: np.array([value]) for name, value in scheduled(row).items()}),
        Keeps(2, 4, 12),
    )
    changed = {"flash": cases.column(flash), "low_precision": cases.column(low), "sequence_parallel": cases.column(sp)}
    return Cases(**{field.name: changed.get(field.name, getattr(case, field.name)) for field in fields(Cases)})


@given(st.sampled_from(list(MODELS.values())), ROWS, st.integers(0, 1), st.integers(0, 1), st.integers(0, 1))
def test_every_predicted_step_balances(model: Model, row: dict[str, int], flash: int, low: int, sp: int) -> None:
    case = single_case(model, row, flash, low, sp)
    predicted = step.step(case, hardware.of_machine(H100, "bfloat16", "float8"), Constants())
    assert spent(predicted) == pytest.approx(predicted.wall, rel=1e-9)
    for line in predicted.lines:
        assert np.min(line.seconds) >= 0 <= np.min(line.hidden), line
    ledger = predicted_ledger.ledger(predicted, 0, 1, "h100")  # validates its sum on construction
    assert ledger.wall_ns == pytest.approx(float(predicted.wall[0]) * 1e9, abs=1)


@pytest.mark.parametrize("tied", [True, False])
def test_fsdp_exchanges_the_embedding_and_the_head_of_each_micro_batch(tied: bool) -> None:
    """Under endless compute, only the embedding and the first layer are exposed, in each direction."""
    model = msgspec.structs.replace(DENSE, tie_word_embeddings=tied)
    case = cases.of_jobs([job(model, dp_shard=8, zero=3)])
    tuned, endless_s = Constants(overlap=1.0), np.full(1, 1e9)
    layers = data_parallel.sharded(case, WHERE, tuned, endless_s, endless_s)
    ends = data_parallel.sharded_ends(case, WHERE, tuned, endless_s, endless_s)
    members = data_parallel.collective_time.shards(case, WHERE)

    def gather_s(values: Column | float, value_bytes: Column) -> float:
        return float(data_parallel.collective_time.gather(WHERE, tuned, members, value_bytes * values)[0])

    weights = shapes.weights(case)
    common, _ = data_parallel.layer_weights(case, weights)
    for part, of_layer, value_bytes in (
        (ends.forward_gather, layers.forward_gather, case.width_bytes),
        (ends.gradient_scatter, layers.gradient_scatter, case.reduce_bytes),
    ):
        table_s = gather_s(weights.table, value_bytes)
        assert float(part.seconds[0]) == pytest.approx(table_s)
        assert float(part.hidden[0]) == pytest.approx(0.0 if tied else table_s)
        assert float((case.layers * of_layer.seconds)[0]) == pytest.approx(gather_s(common, value_bytes))
    assert float(ends.backward_s[0]) == float(ends.gradient_scatter.seconds[0])  # gathered once
    in_pipeline = cases.of_jobs([job(model, dp_shard=4, pp=2)])
    assert float(data_parallel.sharded_ends(in_pipeline, WHERE, tuned, endless_s, endless_s).forward_s[0]) == 0


def test_native_zero_1_gathers_float32_weights_after_an_all_reduce() -> None:
    """With no time to hide under: DDP's all-reduce and an all-gather, of 4 bytes a value. Else only the all-reduce is
    hidden."""
    none = np.zeros(1)
    ddp, zero_1 = (cases.of_jobs([job(**layout)]) for layout in ({"dp_replicate": 8}, {"dp_shard": 8, "zero": 1}))
    all_reduce, _ = data_parallel.once(ddp, WHERE, Constants(), none)
    no_replicas, exchange = data_parallel.once(zero_1, WHERE, Constants(), none)
    assert float(no_replicas.seconds[0]) == 0
    weights = data_parallel.layer_weights(zero_1, shapes.weights(zero_1))
    parts = [data_parallel.collective_time.shards(zero_1, WHERE), weights]
    values = parts[1][0] * zero_1.layers + data_parallel.count_end_parameters(zero_1)
    gather_s = data_parallel.collective_time.gather(WHERE, Constants(), parts[0], 4 * values)
    assert exchange.seconds == pytest.approx(all_reduce.seconds + gather_s)
    hidden = data_parallel.once(zero_1, WHERE, Constants(overlap=1.0), np.full(1, 1e9))[1]
    assert hidden.seconds == pytest.approx(gather_s)


@given(st.sampled_from(list(MODELS.values())), ROWS)
def test_faster_hardware_is_never_slower(model: Model, row: dict[str, int]) -> None:
    case, seconds = single_case(model, row), float(step.step(single_case(model, row), WHERE, Constants()).wall[0])
    for name in ("peak", "bandwidth", "intra_node", "inter_node"):
        better = dataclasses.replace(WHERE, **{name: 2 * getattr(WHERE, name)})
        assert float(step.step(case, better, Constants()).wall[0]) <= seconds * (1 + 1e-9), name


@given(st.sampled_from(list(MODELS.values())), ROWS)
def test_case_costs_the_same_alone_and_in_a_batch(model: Model, row: dict[str, int]) -> None:
    """No value is read from another row."""
    row, other = scheduled(row), scheduled(row | {"tp": 1, "pp": 4, "micro_batch_size": 2, "activation_checkpoint": 2})
    wanted = PlannerInput(model, 1, 8, 16 * 16 * 16 * 4, 512)
    both = layout_space.LayoutSpace({name: np.array([row[name], other[name]]) for name in row})
    together = layout_space.as_cases(wanted, both, Keeps(2, 4, 12))
    for index in (0, 1):
        alone = together.take(np.array([index]))
        assert step.step(alone, WHERE, Constants()).wall[0] == step.step(together, WHERE, Constants()).wall[index]
        assert framework_memory.memory(alone).total[0] == framework_memory.memory(together).total[index]


@given(st.sampled_from(list(MODELS.values())), ROWS)
def test_recomputation_and_sharding_save_memory(model: Model, row: dict[str, int]) -> None:
    """Checked per stage, because the fullest stage may change."""
    for first in (True, False):
        stage = partial(framework_memory.of_stage, first=first)
        activations = [
            float(
                np.ravel(stage(single_case(model, row | {"activation_checkpoint": activation_checkpoint})).activations)[
                    0
                ]
            )
            for activation_checkpoint in (0, 2)
        ]
        assert activations[1] <= activations[0] * 1.5, "recomputation holds the activations of one layer"
        sizes = [stage(single_case(model, row | {"zero": zero})) for zero in (1, 2, 3)]
        for part in ("parameters", "gradients", "optimizer"):
            values = [float(np.ravel(getattr(parts, part))[0]) for parts in sizes]
            assert values == sorted(values, reverse=True), part


# The search


def brute_force(wanted: PlannerInput) -> set[tuple[int, ...]]:
    """All valid rows of the layout space, by trying every assignment of small numbers."""
    model, rows = wanted.model, set()
    degrees = range(1, wanted.devices + 1)
    for tp, pp, cp, ep in product(degrees, degrees, degrees, range(1, max(1, model.experts) + 1)):
        if wanted.devices % (tp * pp * cp) or pp > model.layers or model.heads % tp or wanted.seq_len % (2 * cp * tp):
            continue
        if (model.kv_heads % tp and not model.kv_lora_rank) or (max(1, model.experts) % ep):
            continue
        dp = wanted.devices // (tp * pp * cp)
        if wanted.samples % dp or (dp * cp * tp) % ep:
            continue
        for shard, micro in product(range(1, dp + 1), range(1, wanted.samples // dp + 1)):
            node = wanted.per_node // min(tp * cp, wanted.per_node)
            if dp % shard or shard not in (1, node, dp) or (wanted.samples // dp) % micro:
                continue
            accumulate = wanted.samples // dp // micro
            stages = [1] + [
                chunks for chunks in range(2, 9)
                if pp > 1 and accumulate % max(1, accumulate // pp) == 0
                and 0 in (model.layers % (pp * chunks), (model.layers + 2) % (pp * chunks))
            ]  # fmt: skip
            zeros = [3] if shard * cp == 1 else [1, 2] if pp > 1 else [1, 2, 3]
            for zero, interleave, activation_checkpoint in product(zeros, stages, (0, 1, 2)):
                axes = (dp // shard, shard, tp, cp, pp, ep, zero, interleave, micro, activation_checkpoint, 0)
                rows.add((*axes, schedules.SCHEDULES.index("interleaved") if interleave > 1 else 0))
    return rows


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("devices", [1, 6, 8, 12])
def test_space_equals_brute_force(name: str, devices: int) -> None:
    wanted = PlannerInput(MODELS[name], devices, 8, 24, 256)
    space = layout_space.space(wanted)
    rows = [tuple(space.row(index)[axis] for axis in layout_space.AXES) for index in range(len(space))]
    assert len(rows) == len(set(rows))
    assert set(rows) == brute_force(wanted)


def search_for(
    model: Model, devices: int = 4, framework: str = "megatron", most: int = 10**9, **options: Any
) -> SearchResult:
    refuses = transformer_ops.check if framework == "trainyard" else lambda _: None
    return search(
        PlannerInput(model, devices, 8, 8, 256, **options), H100, FRAMEWORKS[framework], most=most, refuses=refuses
    )


@pytest.mark.parametrize("name", MODELS)
def test_search_ranks_all_layouts_by_their_own_cost(name: str) -> None:
    result = search_for(MODELS[name])
    walls = [choice.plan.ledger.wall_ns for choice in result.choices]
    assert len(walls) == result.fitting
    assert walls == sorted(walls)
    constants = constant_sets.choose(H100, "megatron")
    for choice in (result.choices[0], result.choices[-1]):
        wanted = PlannerInput(MODELS[name], 4, 8, 8, 256)
        space = layout_space.space(wanted)
        layout, recipe = choice.plan.job.layout, choice.plan.job.recipe
        row = {
            axis: getattr(layout, axis)
            for axis in ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep", "zero", "interleave")
        }
        row = scheduled(
            row
            | {
                "micro_batch_size": recipe.micro_batch_size,
                "activation_checkpoint": cases.ACTIVATION_CHECKPOINTS.index(recipe.activation_checkpoint),
                "offload": 0,
            }
        )
        assert any(space.row(index) == row for index in range(len(space)))
        alone = layout_space.as_cases(
            wanted, layout_space.LayoutSpace({axis: np.array([value]) for axis, value in row.items()}), Keeps(2, 4, 12)
        )
        ledger = predicted_ledger.ledger(step.step(alone, WHERE, constants.values()), 0, layout.ranks, "h100")
        assert ledger.wall_ns == choice.plan.ledger.wall_ns


def test_front_is_not_dominated_in_time_and_memory() -> None:
    choices = search_for(DENSE).choices
    for choice in choices:
        beaten = any(
            other.plan.ledger.wall_ns <= choice.plan.ledger.wall_ns and other.reserved < choice.reserved
            for other in choices
        )
        assert choice.front != beaten or any(
            other is not choice
            and other.reserved == choice.reserved
            and other.plan.ledger.wall_ns <= choice.plan.ledger.wall_ns
            for other in choices
        )


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", MODELS)
def test_search_offers_only_supported_layouts(name: str, framework: str) -> None:
    result = search_for(MODELS[name], 4, framework, most=60)
    assert not result.refused, "layouts that the runner refuses are excluded before ranking"
    for choice in result.choices:
        layout = choice.plan.job.layout
        if framework == "megatron":
            assert layout.zero == 1 or layout.dp_shard * layout.cp == 1
        if framework == "deepspeed":
            assert layout.cp == layout.ep == layout.interleave == 1


def test_refused_layouts_are_skipped_and_reported() -> None:
    def refuses(job: Job) -> None:
        if job.layout.tp == 1:
            raise BadJob("tp must be above 1.")

    wanted = PlannerInput(DENSE, 8, 8, 64, 256)
    result = search(wanted, H100, FRAMEWORKS["megatron"], most=5, refuses=refuses)
    assert all(choice.plan.job.layout.tp > 1 for choice in result.choices)
    with refused(BadJob, "774 layouts", "dp_shard 8, ZeRO-1: no"):
        search(wanted, H100, FRAMEWORKS["megatron"], refuses=lambda _: (_ for _ in ()).throw(BadJob("no")))


def tight(memory_bytes: float) -> Machine:
    memory = msgspec.structs.replace(H100.device.memory, value=memory_bytes)
    return msgspec.structs.replace(H100, device=msgspec.structs.replace(H100.device, memory=memory), host=None)


def test_too_large_model_is_reported_with_a_remedy() -> None:
    big = msgspec.structs.replace(DENSE, hidden_size=1024, ffn_hidden_size=4096, head_dim=128, layers=8)
    with refused(BadJob, "2 devices", "153 layouts", "1.4 GB", "564.0 MB", "817.2 MB") as raised:
        search(PlannerInput(big, 2, 8, 64, 256), tight(6e8), FRAMEWORKS["megatron"])
    assert raised.value.next_step.endswith("devices would be enough.")
    enough = int(raised.value.next_step.split()[0].replace(",", ""))
    result = search(PlannerInput(big, enough, 8, 64, 256), tight(6e8), FRAMEWORKS["megatron"])
    assert all(choice.reserved <= 6e8 * USABLE for choice in result.choices)


@pytest.mark.parametrize(
    ("fixed", "values"),
    [
        ({"tp": 16}, ["tp = 16", "8 heads % tp 16 = 8"]),
        ({"tp": 8}, ["tp = 8", "4 heads of keys and values % tp 8 = 4"]),
        ({"pp": 3}, ["pp = 3", "8 devices % pp 3 = 2"]),
        ({"pp": 8}, ["pp 8", "4 layers"]), ({"dp_shard": 3}, ["8 devices % dp_shard 3 = 2"]),
        ({"ep": 2}, ["no experts"]), ({"pp": 4, "dp_shard": 4}, ["8 devices % (pp 4 x dp_shard 4) = 8"]),
    ],
)  # fmt: skip
def test_infeasible_axis_is_explained(fixed: dict[str, int], values: list[object]) -> None:
    with refused(BadJob, "8 devices", *values, *(f"--fix {axis}" for axis in fixed)):
        search_for(DENSE, 8, fixed=fixed)


# Input and output


def test_constants_are_claims() -> None:
    assert constant_sets.known()
    for constants in constant_sets.known():
        assert constants.rows
        assert set(constants.devices) <= set(machine.known())
        claims = constants.claims
        assert len(claims) == len(Constants._fields)
        assert all(claim.source and claim.value > 0 for claim in claims)
    with refused(BadInput, "warp"):
        constant_sets.ConstantSet(
            name="x", description="", devices=(), software="fsdp", source="", date="", rows=1, constants={"warp": 1.0}
        )


def example() -> Job:
    return job(
        EXPERTS,
        {"dtype": "bfloat16", "activation_checkpoint": "selective", "schedule": "interleaved"},
        dp_shard=2,
        pp=2,
        interleave=2,
        ep=2,
        zero=1,
    )


def test_launch_files_contain_the_layout() -> None:
    example_job = example()
    assert jobs.parse(FRAMEWORKS["trainyard"].write_config(example_job), "x") == example_job
    words = FRAMEWORKS["megatron"].write_config(example_job).split()
    for flag, value in (
        ("--pipeline-model-parallel-size", "2"), ("--expert-model-parallel-size", "2"), ("--num-experts", "8"),
        ("--num-virtual-stages-per-pipeline-rank", "2"), ("--micro-batch-size", "1"), ("--global-batch-size", "16"),
    ):  # fmt: skip
        assert words[words.index(flag) + 1] == value
    assert "--use-distributed-optimizer" in words
    titan = tomllib.loads(FRAMEWORKS["torchtitan"].write_config(example_job))
    assert titan["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert titan["parallelism"]["expert_parallel_degree"] == 2
    assert titan["activation_checkpoint"]["mode"] == "selective"
    speed = json.loads(FRAMEWORKS["deepspeed"].write_config(example_job))
    assert speed["train_batch_size"] == example_job.batch
    assert speed["train_micro_batch_size_per_gpu"] * speed["gradient_accumulation_steps"] * 2 == example_job.batch
    assert speed["zero_optimization"]["stage"] == 1


ASKED = ("plan", "tiny", "--machine", "h100", "--devices", "8", "--batch", "64", "--seq-len", "128")


def test_command_prints_and_writes_plans(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "best.toml"
    assert answer([*ASKED, "--tokens", "1e9", "--out", str(out), "--full"]) == 0
    printed = capsys.readouterr().out
    for part in ("Layout", "days", "Predicted ledger", "ns exactly", "Memory of the fullest rank", "hopper-fsdp"):
        assert part in printed
    assert answer([*ASKED, "--tokens", "1e9", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    best = plain["choices"][0]
    entries = best["plan"]["ledger"]["entries"]
    assert sum(entry["ns"] for entry in entries) == best["plan"]["ledger"]["wall_ns"]
    assert best["plan"]["low"] <= best["plan"]["ledger"]["wall_ns"] <= best["plan"]["high"]
    written = jobs.load(out)
    assert json.loads(msgspec.json.encode(written.layout)) == best["plan"]["job"]["layout"]
    assert answer(["plan", str(out), "--machine", "a100"]) == 0, "a job file is accepted as the model"
    assert "8 x NVIDIA A100" in capsys.readouterr().out


def test_diff_compares_plans_and_traces(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("h100", "a100"):
        assert answer([*ASKED[:3], name, *ASKED[4:], "--json"]) == 0
        (tmp_path / f"{name}.json").write_text(capsys.readouterr().out)
    assert answer(["diff", str(tmp_path / "a100.json"), str(tmp_path / "h100.json")]) == 0
    printed = capsys.readouterr().out
    assert "Different devices: a100 against h100." in printed
    assert "are not comparable" not in printed
    a, b = (read_plans(tmp_path / f"{name}.json").best.plan.ledger for name in ("a100", "h100"))
    assert sum(change.ns for change in diff(a, b)) == b.wall_ns - a.wall_ns
    demo = machine.__file__.replace("machine.py", "data/demo")
    assert answer(["diff", str(tmp_path / "a100.json"), demo]) == 0
    assert "8 ranks" in capsys.readouterr().out, "of the plan; the demo trace has 2"
    (tmp_path / "torn.json").write_text((tmp_path / "a100.json").read_text()[:3000])
    assert answer(["diff", str(tmp_path / "torn.json"), demo]) == 2
    failure = capsys.readouterr().err
    assert code_of(failure) == "bad-file"
    assert missing_values(failure, tmp_path / "torn.json", "plans") == []
    bigger = [*ASKED[:-1], "256", "--json"]
    assert answer(bigger) == 0
    (tmp_path / "other.json").write_text(capsys.readouterr().out)
    assert answer(["diff", str(tmp_path / "a100.json"), str(tmp_path / "other.json")]) == 0
    assert "Different sequence lengths: 128 against 256" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "values"),
    [
        (("plan", "llama3-7b", "--machine", "h100"), "unknown-name", ["'llama3-7b'", "'llama3-8b'"]),
        (("plan", "tiny"), "bad-input", ["--machine", "trainyard plan list machines"]),
        (("plan", "tiny", "--machine", "h10"), "unknown-name", ["'h10'", "'h100'"]),
        (("plan", "tiny", "--machine", "h100"), "bad-input", ["--batch", "--seq-len"]),
        (
            ("plan", "resnet-50", "--machine", "h100", "--batch", "1"),
            "bad-job",
            ["resnet-50 is not planned", "'resnet'"],
        ),
        ((*ASKED, "--fix", "tq=8"), "unknown-name", ["--fix tq=8", "'tq'", "dp_shard"]),
        ((*ASKED, "--fix", "tp=x"), "bad-input", ["--fix tp=x", "'x'"]),
        ((*ASKED, "--fix", "tp=16"), "bad-job", ["tp = 16", "4 heads % tp 16 = 4"]),
        ((*ASKED, "--for", "megatrom"), "unknown-name", ["'megatrom'", "'megatron'"]),
        ((*ASKED, "--fix", "dtype=bf16"), "unknown-name", ["'bf16'", "'bfloat16'"]),
        ((*ASKED, "--fix", "dtype=float64"), "unknown-name", ["float64", "not supported", "Supported", "float32"]),
        ((*ASKED, "--fix", "dtype=float4"), "unknown-name", ["H100", "float4", "float8"]),
        ((*ASKED, "--fix", "tp"), "bad-input", ["--fix tp", "--fix tp=8"]),
        ((*ASKED, "--fix", "tp="), "bad-input", ["--fix tp=8"]),
        ((*ASKED, "--fix", "zero=0"), "bad-input", ["zero=0", "--fix dp_shard=1"]),
        ((*ASKED, "--tokens", "nan"), "bad-input", ["--tokens nan"]),
        ((*ASKED, "--tokens", "0"), "bad-input", ["--tokens 0"]),
        ((*ASKED, "--tokens", "15T"), "bad-usage", ["'15T'", "1.5e+13"]),
        ((*ASKED, "--tokens", "1,5e12"), "bad-usage", ["'1,5e12'", "15e12"]),
        ((*ASKED, "--batch", "1e3"), "bad-usage", ["'1e3'", "1000"]),
        ((*ASKED, "--batch", "1,024"), "bad-usage", ["'1,024'", "1024"]),
        ((*ASKED, "--batch", "64.0"), "bad-usage", ["'64.0'", "64"]),
        ((*ASKED, "--seq-len", "8k"), "bad-usage", ["'8k'", "8000", "8192"]),
        ((*ASKED, "--devices", "0"), "bad-usage", ["'0'", "1"]),
        (("plan", "tiny", "--machine", "h100:64"), "bad-input", ["--machine h100 --devices 64"]),
        (("plan", "/dev/zero", "--machine", "h100"), "bad-file", ["/dev/zero"]),
        ((*ASKED, "--expert-imbalance", "2"), "bad-input", ["Leave out --expert-imbalance"]),
        ((*ASKED, "--out", "/nowhere/x.toml"), "not-writable", ["/nowhere/x.toml"]),
    ],
)
def test_bad_input_is_reported(
    arguments: tuple[str, ...], code: str, values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(list(arguments)) == (4 if code == "not-writable" else 2)
    printed = capsys.readouterr()
    assert code_of(printed.err) == code
    assert missing_values(printed.err, *values) == []
    assert not printed.out


def test_names_of_axes_may_have_capitals_and_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for axis in ("tp=2", "TP = 2"):
        assert answer([*ASKED, "--fix", axis]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_a_link_without_target_is_reported(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    assert answer(["plan", str(loop), "--machine", "h100"]) == 2
    failure = capsys.readouterr().err
    assert code_of(failure) == "missing-file"
    assert missing_values(failure, loop, "link") == []


@pytest.mark.parametrize(
    ("text", "values"), [("", ["empty"]), ('{"architectures": ["LlamaForCausalLM"]}', ["config.json", "--model"])]
)
def test_a_file_that_is_not_a_configuration_is_named(
    text: str, values: list[str], tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "given.json"
    file.write_text(text)
    assert answer(["plan", "check", str(file), "--machine", "h100"]) == 2
    failure = capsys.readouterr().err
    assert code_of(failure) == "bad-file"
    assert missing_values(failure, file, *values) == []


def test_model_file_without_extension_is_detected_by_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_hidden_layers": 2, "hidden_size": 64,
        "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 256,
    }  # fmt: skip
    cluster = ["--machine", "h100", "--devices", "8", "--batch", "64", "--seq-len", "128", "--json"]
    pipe = tmp_path / "63"
    os.mkfifo(pipe)
    writer = Thread(target=lambda: pipe.write_text("\n " + json.dumps(config)))
    writer.start()
    assert answer(["plan", str(pipe), *cluster]) == 0
    writer.join()
    assert json.loads(capsys.readouterr().out)["choices"]
    (tmp_path / "toml").write_text(presets.known()["llama3-8b"].read_text("utf-8"))
    assert answer(["plan", str(tmp_path / "toml"), *cluster]) == 0


def test_command_has_at_most_ten_flags() -> None:
    for each in (command.default_command(), command.get_command(click.Context(command), "check")):
        assert each is not None
        # Costs apply to a token budget only, and details of a fine-tuning or a network to these only.
        groups = (RunCosts, FineTune, TrainingOptions, Fabric)
        others = ("as_json", *(detail.name for group in groups for detail in fields(group)))
        flags = [option for option in each.params if option.param_type_name == "option" and option.name not in others]
        assert len(flags) <= 10
    assert CliRunner().invoke(command, ["--help"]).exit_code == 0


@pytest.mark.torch
def test_job_is_checked_and_compared_with_the_fastest() -> None:
    pytest.importorskip("torch")
    job = jobs.load(TINY)
    result = CliRunner().invoke(command, ["check", str(TINY), "--machine", "a100", "--json"])
    output = json.loads(result.stdout)
    first, second, *_ = output["choices"]
    assert msgspec.convert(first["plan"]["job"], Job) == job
    assert first["plan"]["job"]["recipe"]["dtype"] == second["plan"]["job"]["recipe"]["dtype"] == "float32"
    assert second["plan"]["ledger"]["wall_ns"] <= first["plan"]["ledger"]["wall_ns"]
    assert max(output["exact_bytes"].values()) == pytest.approx(sum(first["plan"]["memory"].values()), rel=0.05)


def test_cost_of_a_job_that_does_not_fit_is_reported() -> None:
    job = jobs.load(TINY)
    wide = msgspec.structs.replace(job.decoder, layers=64, hidden_size=16384, ffn_hidden_size=65536)
    large = msgspec.structs.replace(job, model=wide)
    choice = cost_job(large, machine.load("a100"), FRAMEWORKS["trainyard"])
    assert choice.reserved > machine.load("a100").device.memory.value
