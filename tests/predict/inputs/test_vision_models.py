"""Planning for vision and diffusion Transformers: counts of their workloads, memory of the training code, and the
command's output."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import fake_runs
from tests.refused import code_of, missing_values, refused
from trainyard import job_file as jobs
from trainyard import machine, plugins
from trainyard.cli.main import answer
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.models import presets
from trainyard.predict.economics import step_cost
from trainyard.predict.inputs import cases, hardware, layout_space, vision_models
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import Keeps, PlannerInput
from trainyard.predict.inputs.vision_models import VisionModel
from trainyard.predict.memory import framework_memory, native_memory
from trainyard.predict.search.search import search
from trainyard.predict.time import data_parallel, predicted_ledger, shapes, step
from trainyard.recipe import Recipe
from trainyard.workloads.diffusion import Diffusion
from trainyard.workloads.image_workload import ImageWorkload
from trainyard.workloads.ops import diffusion_ops, vision_ops
from trainyard.workloads.vision import Vision

TINY = ("tiny-vit", "tiny-dit", "tiny-flux", "tiny-dit-plain")
LARGE = ("vit-b-16", "vit-l-16", "vit-h-14", "sd3-medium", "flux1-dev", "dit-xl2")
H100 = machine.load("h100")
WHERE = hardware.of_machine(H100, "bfloat16")


def a_job(name: str, layout: dict[str, Any] | None = None, sizes: dict[str, Any] | None = None, **recipe: Any) -> Job:
    preset = presets.load(name)
    values = {"tokens_per_step": 16, "micro_batch_size": 2, "dtype": "bfloat16"} | recipe
    return Job(
        name=name, workload=preset.workload, sizes={**(preset.sizes or {}), **(sizes or {})},
        layout=Layout(**layout or {}), recipe=Recipe(**values),
    )  # fmt: skip


def subject(name: str) -> VisionModel:
    return vision_models.of_job(a_job(name))


def workload_of(job: Job) -> ImageWorkload:
    return Vision() if job.workload == "vision" else Diffusion()


def parameters(columns: Cases) -> float:
    common, expert = data_parallel.layer_weights(columns, shapes.weights(columns))
    return float(((common + expert) * columns.layers + data_parallel.count_end_parameters(columns))[0])


# Against the counts of workloads


@pytest.mark.parametrize("layout", [{}, {"dp_shard": 4}, {"tp": 2}, {"dp_replicate": 2, "tp": 2}], ids=str)
@pytest.mark.parametrize("name", TINY)
def test_flops_equal_the_workloads_exactly(name: str, layout: dict[str, int]) -> None:
    for more in ({}, {"micro_batch_size": 1}, {"activation_checkpoint": "full"}):
        job = a_job(name, layout, **more)
        assert float(step_cost.model_flops(cases.of_jobs([job]))[0]) == workload_of(job).model_flops(job)


@pytest.mark.parametrize("name", LARGE)
def test_flops_and_parameters_of_presets_equal_the_workloads(name: str) -> None:
    job = a_job(name, tokens_per_step=2)
    columns, workload = cases.of_jobs([job]), workload_of(job)
    assert float(step_cost.model_flops(columns)[0]) == pytest.approx(workload.model_flops(job), rel=1e-15)
    tally = workload.ops.tally(workload.ops.check(job), job.recipe)
    assert parameters(columns) == pytest.approx(tally.parameters, rel=1e-14)
    split = a_job(name, {"tp": 2}, tokens_per_step=2)
    here = workload.weights(split)
    assert parameters(cases.of_jobs([split])) == pytest.approx(here, rel=2e-3), "the planner does not divide biases"


SIZED = st.fixed_dictionaries(
    {
        "latent": st.sampled_from([8, 12, 16]), "channels": st.sampled_from([1, 4]), "width": st.sampled_from([32, 64]),
        "ffn": st.sampled_from([48, 128]), "pooled_width": st.integers(1, 40), "qk_norm": st.booleans(),
        "guidance": st.booleans(),
    }
)  # fmt: skip
BLOCKS = st.sampled_from(
    [{"plain": 3}, {"double": 2, "text_tokens": 5, "text_width": 7}, {"double": 1, "text_tokens": 1, "text_width": 9},
     {"double": 2, "single": 3, "text_tokens": 6, "text_width": 8}]
)  # fmt: skip


@given(SIZED, BLOCKS)
def test_any_diffusion_transformer_counts_like_its_workload(sizes: dict[str, Any], blocks: dict[str, int]) -> None:
    network = {"family": "dit", "heads": 4, **sizes, **blocks}
    job = Job(workload="diffusion", sizes=network, recipe=Recipe(tokens_per_step=8, micro_batch_size=2))
    case = cases.of_jobs([job])
    assert round(float(step_cost.model_flops(case)[0])) == workload_of(job).model_flops(job)
    tally = diffusion_ops.tally(diffusion_ops.check(job), job.recipe)
    assert round(parameters(case)) == tally.parameters


@given(st.integers(1, 5), st.sampled_from([1, 3]), st.sampled_from([(16, 4), (28, 7), (224, 16)]), st.integers(2, 50))
def test_any_vision_transformer_counts_like_its_workload(
    layers: int, channels: int, cut: tuple[int, int], classes: int
) -> None:
    sizes = {"family": "vit", "image": cut[0], "patch": cut[1], "channels": channels, "classes": classes,
             "layers": layers, "width": 32, "ffn": 80, "heads": 4}  # fmt: skip
    job = Job(workload="vision", sizes=sizes, recipe=Recipe(tokens_per_step=8, micro_batch_size=2))
    case = cases.of_jobs([job])
    assert round(float(step_cost.model_flops(case)[0])) == workload_of(job).model_flops(job)
    assert round(parameters(case)) == vision_ops.tally(vision_ops.check(job), job.recipe).parameters


# Properties

ROWS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4]), "dp_replicate": st.sampled_from([1, 2, 8]), "ep": st.just(1),
        "dp_shard": st.sampled_from([1, 2, 8]), "zero": st.sampled_from([1, 2, 3]), "cp": st.just(1), "pp": st.just(1),
        "interleave": st.just(1), "micro_batch_size": st.sampled_from([1, 4]),
        "activation_checkpoint": st.sampled_from([0, 1, 2]),
        "offload": st.just(0), "schedule": st.just(0),
    }
)  # fmt: skip
KEEPS = st.sampled_from([Keeps(4, 4, 8, native=True), Keeps(2, 4, 12)])
NAMES = st.sampled_from(["vit-b-16", "vit-l-16", "sd3-medium", "flux1-dev", "dit-xl2"])


def one_case(name: str, row: dict[str, int], keeps: Keeps) -> Cases:
    wanted = PlannerInput(subject(name), 1, 8, row["dp_replicate"] * row["dp_shard"] * row["micro_batch_size"] * 4, 1)
    return layout_space.as_cases(
        wanted, layout_space.LayoutSpace({axis: np.array([value]) for axis, value in row.items()}), keeps
    )


@given(NAMES, ROWS, KEEPS)
def test_every_predicted_step_balances(name: str, row: dict[str, int], keeps: Keeps) -> None:
    predicted = step.step(one_case(name, row, keeps), WHERE, Constants())
    spent = sum((np.asarray(line.seconds) for line in predicted.lines), np.zeros(1))
    assert spent == pytest.approx(predicted.wall, rel=1e-9)
    for line in predicted.lines:
        assert np.min(line.seconds) >= 0 <= np.min(line.hidden), line
    ledger = predicted_ledger.ledger(predicted, 0, 1, "h100")
    assert ledger.wall_ns == pytest.approx(float(predicted.wall[0]) * 1e9, abs=1)


@given(NAMES, ROWS, KEEPS)
def test_faster_hardware_is_never_slower(name: str, row: dict[str, int], keeps: Keeps) -> None:
    case = one_case(name, row, keeps)
    slow = float(step.step(case, WHERE, Constants()).wall[0])
    for field in ("peak", "bandwidth", "intra_node", "inter_node"):
        better = dataclasses.replace(WHERE, **{field: 2 * getattr(WHERE, field)})
        assert float(step.step(case, better, Constants()).wall[0]) <= slow * (1 + 1e-9), field


@given(st.lists(st.tuples(st.sampled_from([*TINY, "sd3-medium"]), ROWS), min_size=2, max_size=4))
def test_a_case_costs_the_same_alone_and_in_a_batch(choices: list[tuple[str, dict[str, int]]]) -> None:
    """In a batch with jobs of other models, including a decoder."""
    axes = ("tp", "dp_replicate", "dp_shard", "zero")
    batch: list[Job] = []
    for name, row in choices:
        samples = row["dp_replicate"] * row["dp_shard"] * row["micro_batch_size"] * 2
        layout = {axis: row[axis] for axis in axes}
        batch.append(a_job(name, layout, micro_batch_size=row["micro_batch_size"], tokens_per_step=samples))
    batch.append(jobs.load(Path(__file__).parents[3] / "examples" / "tiny.toml"))
    together = cases.of_jobs(batch)
    walls, bytes_of = step.step(together, WHERE, Constants()).wall, framework_memory.memory(together).total
    for index, job in enumerate(batch):
        alone = cases.of_jobs([job])
        assert float(step.step(alone, WHERE, Constants()).wall[0]) == pytest.approx(float(walls[index]), rel=1e-12)
        assert float(framework_memory.memory(alone).total[0]) == pytest.approx(float(bytes_of[index]), rel=1e-12)


@given(NAMES, ROWS, KEEPS)
def test_recomputation_and_zero_never_need_more_memory(name: str, row: dict[str, int], keeps: Keeps) -> None:
    def need(**changed: int) -> float:
        return float(framework_memory.memory(one_case(name, row | changed, keeps)).total[0])

    most = need(activation_checkpoint=0)
    assert need(activation_checkpoint=2) <= most * (1 + 1e-9)
    assert need(activation_checkpoint=0, micro_batch_size=2 * row["micro_batch_size"]) >= most * (1 - 1e-9)
    for part in framework_memory.memory(one_case(name, row, keeps)).parts().values():
        assert float(np.min(part)) >= 0
    if not keeps.native:
        stages = [framework_memory.memory(one_case(name, row | {"zero": zero}, keeps)) for zero in (1, 2, 3)]
        for part in ("parameters", "gradients", "optimizer"):
            sizes = [float(np.ravel(getattr(memory, part))[0]) for memory in stages]
            assert sizes == sorted(sizes, reverse=True), part


# Memory of trainyard's own trainer


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout", "how"),
    [
        ("vit-l-16", {}, {"tokens_per_step": 32, "micro_batch_size": 16}),
        ("vit-l-16", {"dp_shard": 4}, {"activation_checkpoint": "full", "tokens_per_step": 64, "micro_batch_size": 16}),
        ("vit-l-16", {"tp": 4}, {"tokens_per_step": 16, "micro_batch_size": 16}),
        ("dit-xl2", {"dp_shard": 4, "zero": 2}, {"tokens_per_step": 64, "micro_batch_size": 16}),
        (
            "dit-xl2",
            {"dp_shard": 2, "zero": 1},
            {"activation_checkpoint": "selective", "tokens_per_step": 64, "micro_batch_size": 16},
        ),
        ("sd3-medium", {"dp_shard": 4}, {"tokens_per_step": 8}),
        ("sd3-medium", {"dp_replicate": 2}, {"tokens_per_step": 8, "dtype": "float32"}),
        ("flux1-dev", {"dp_shard": 8}, {"tokens_per_step": 16}),
    ],
    ids=str,
)
def test_predicted_memory_matches_fake_runs(name: str, layout: dict[str, Any], how: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    fewer = {"vit-l-16": {"layers": 4}, "dit-xl2": {"plain": 4}, "sd3-medium": {"double": 4},
             "flux1-dev": {"double": 4, "single": 4, "latent": 32}}[name]  # fmt: skip
    job = a_job(name, layout, fewer, **how)
    counted = fake_runs.measure_rank(job, 0)
    assert float(native_memory.peak(cases.of_jobs([job]), first=True).total[0]) == pytest.approx(
        counted.peak, rel=0.025
    )
    assert counted.gradients == pytest.approx(counted.parameters, rel=1e-3), "samples are not counted as gradients"


@pytest.mark.torch
@pytest.mark.slow
def test_image_workloads_have_fake_runs_and_recommenders_none() -> None:
    pytest.importorskip("torch")
    assert fake_runs.measure_rank(a_job("tiny-resnet"), 0).peak > 0
    assert fake_runs.measure_rank(a_job("tiny-unet"), 0).peak > 0
    with refused(BadJob, "workload = 'recommender'"):
        fake_runs.measure_rank(a_job("tiny-dlrm"), 0)


# The search


def search_for(name: str, framework: str = "trainyard", devices: int = 4, **more: Any) -> Any:
    refuses = plugins.load("workloads", subject(name).workload).weights if framework == "trainyard" else lambda _: None
    return search(
        PlannerInput(subject(name), devices, 8, 8, 1, **more), H100, FRAMEWORKS[framework], most=10**6, refuses=refuses
    )


@pytest.mark.parametrize("name", TINY)
def test_native_trainer_accepts_every_offered_layout(name: str) -> None:
    plan = search_for(name)
    assert not plan.refused
    for choice in plan.choices:
        job = choice.plan.job
        assert jobs.parse(FRAMEWORKS["trainyard"].write_config(job), "x") == job
        assert workload_of(job).expect(job)
    layouts = {choice.plan.job.layout for choice in plan.choices}
    wanted = {
        (4 // tp // shard, shard, tp) for tp in (1, 2, 4) for shard in (1, 4 // tp) if (name, tp) != ("tiny-vit", 4)
    }  # fmt: skip
    assert {(layout.dp_replicate, layout.dp_shard, layout.tp) for layout in layouts} == wanted, "10 classes % tp 4 = 2"


def test_frameworks_get_only_supported_models_and_axes() -> None:
    assert {choice.plan.job.layout.tp for choice in search_for("tiny-vit", "megatron").choices} == {1}
    assert {choice.plan.job.layout.tp for choice in search_for("tiny-flux", "torchtitan").choices} == {1}
    assert {choice.plan.job.layout.tp for choice in search_for("tiny-dit", "deepspeed").choices} == {1}
    for name, framework in (("tiny-vit", "torchtitan"), ("tiny-dit", "torchtitan"), ("tiny-dit", "megatron")):
        with refused(BadJob, FRAMEWORKS[framework].display_name, "--for"):
            search_for(name, framework)


# The command


def test_command_prints_and_writes_a_plan(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "best.toml"
    arguments = ["plan", "vit-b-16", "--machine", "h100", "--devices", "8", "--batch", "256"]
    assert answer([*arguments, "--tokens", "1e9", "--out", str(out), "--full"]) == 0
    printed = capsys.readouterr().out
    for part in (
        "256 images of 197 positions per step",
        "images/s",
        "days",
        "ns exactly",
        "Memory of the fullest rank",
    ):
        assert part in printed
    assert "loss too" not in printed, "tp does not divide the loss"
    assert answer([*arguments, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["choices"][0]
    assert best["bill"]["tokens_per_s"] == pytest.approx(256 / best["plan"]["ledger"]["wall_ns"] * 1e9)
    assert answer(["plan", str(out), "--machine", "a100"]) == 0, "plan accepts a job in place of a model"
    assert "8 x NVIDIA A100" in capsys.readouterr().out


@pytest.mark.torch
@pytest.mark.slow
def test_check_keeps_the_jobs_layout_and_recipe(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "job.toml"
    path.write_text(
        jobs.write(
            a_job("vit-b-16", {"dp_shard": 2}, {"layers": 2}, micro_batch_size=8, activation_checkpoint="selective")
        )
    )
    assert answer(["plan", "check", str(path), "--machine", "a100", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    first = plan["choices"][0]
    assert first["plan"]["job"]["recipe"]["activation_checkpoint"] == "selective"
    assert max(plan["exact_bytes"].values()) == pytest.approx(sum(first["plan"]["memory"].values()), rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "code", "values"),
    [
        (("resnet-50", "--batch", "8"), "bad-job", ["resnet-50 is not planned", "'resnet'", "plan list models"]),
        (("sd1.5-unet", "--batch", "8"), "bad-job", ["sd1.5-unet is not planned", "'unet'"]),
        (("dlrm-dcnv2", "--batch", "8"), "bad-job", ["dlrm-dcnv2 is not planned", "workload is 'recommender'"]),
        (("vit-l-16",), "bad-input", ["--batch"]),
        (("vit-l-16", "--batch", "8", "--seq-len", "16"), "bad-input", ["--seq-len 16", "vit-l-16", "197 positions"]),
        (("vit-l-16", "--batch", "64", "--fix", "tp=3"), "bad-job", ["16 heads % tp 3 = 1"]),
        (("vit-l-16", "--batch", "64", "--fix", "cp=2"), "bad-job", ["cp = 2", "cp 2", "tp"]),
        (("vit-l-16", "--batch", "64", "--fix", "dtype=float8"), "bad-job", ["dtype = 'float8'", "$.recipe", "vision"]),
        (("vit-l-16", "--batch", "64", "--for", "torchtitan"), "bad-job", ["torchtitan", "models/flux"]),
        (
            ("vit-l-16", "--batch", "64", "--for", "megatron", "--out", "x"),
            "bad-job",
            ["vit-l-16", "Megatron Core", "--out"],
        ),
        (("check", __file__, "--model", "vit-l-16"), "bad-input", [__file__, "--model vit-l-16"]),
    ],
)
def test_bad_input_is_refused(
    arguments: tuple[str, ...], code: str, values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", *arguments, "--machine", "h100", "--devices", "8"]) == 2
    captured = capsys.readouterr()
    assert code_of(captured.err) == code
    assert missing_values(captured.err, *values) == []
    assert not captured.out
