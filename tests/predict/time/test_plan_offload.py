"""Offloading to the host's memory: it never speeds up a step, frees device memory, and is planned only if needed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.predict.test_plan import DENSE, H100, MODELS, ROWS, TINY, WHERE, job, scheduled, spent
from tests.refused import code_of, missing_values, refused
from trainyard import job_file as jobs
from trainyard import machine, units
from trainyard.cli.main import answer
from trainyard.errors import BadFile, BadJob
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.hetero import best_pipelines, fleet
from trainyard.predict.inputs import constant_sets, hardware, layout_space
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import Keeps, LayoutSpace, PlannerInput
from trainyard.predict.memory import framework_memory
from trainyard.predict.search import offload_variants
from trainyard.predict.search.layout_cost import cost_job
from trainyard.predict.search.search import search
from trainyard.predict.time import offload, step
from trainyard.train.rules import recipe_rules as rules
from trainyard.workloads.ops import transformer_ops

KINDS = st.sampled_from(offload.KINDS[1:])


def a_case(model: Model, row: dict[str, int], kind: offload.Kind, own: bool = False, **more: int) -> Cases:
    wanted = PlannerInput(model, 1, 8, row["dp_replicate"] * row["dp_shard"] * row["micro_batch_size"] * 4, 512)
    layouts = LayoutSpace({name: np.array([value]) for name, value in scheduled(row | more).items()})
    return layout_space.as_cases(wanted, layouts, Keeps(4, 4, 8, native=own, offload=kind))


# Properties


@given(st.sampled_from(list(MODELS.values())), ROWS, KINDS)
def test_an_offloaded_step_balances_and_is_never_faster(model: Model, row: dict[str, int], kind: offload.Kind) -> None:
    """With any host: so the planner need not cost the offloaded variant of a layout that fits."""
    for where in (WHERE, replace(WHERE, host_bandwidth=WHERE.host_bandwidth * 1e6, host_link=WHERE.host_link * 1e6)):
        here, away = (step.step(a_case(model, row, kind, offload=kept), where, Constants()) for kept in (0, 1))
        assert float(away.wall[0]) >= float(here.wall[0]) * (1 - 1e-12)
        assert spent(away) == pytest.approx(away.wall, rel=1e-9)
        assert all(np.min(line.seconds) >= -1e-15 and np.min(line.hidden) >= 0 for line in away.lines)
        bound = step.bound(a_case(model, row, kind, offload=1), where, Constants())
        assert float(bound[0]) <= float(away.wall[0]) * (1 + 1e-9)


@given(st.sampled_from(list(MODELS.values())), ROWS, KINDS)
def test_a_faster_host_is_never_slower(model: Model, row: dict[str, int], kind: offload.Kind) -> None:
    case = a_case(model, row, kind, offload=1)
    slow = float(step.step(case, WHERE, Constants()).wall[0])
    for name in ("host_bandwidth", "host_link"):
        better = replace(WHERE, **{name: getattr(WHERE, name) * 2})
        assert float(step.step(case, better, Constants()).wall[0]) <= slow * (1 + 1e-9), name


@given(st.sampled_from(list(MODELS.values())), ROWS, KINDS, st.booleans())
def test_offloaded_tensors_leave_the_device(model: Model, row: dict[str, int], kind: offload.Kind, own: bool) -> None:
    kind = "all" if own else kind
    here, away = (a_case(model, row, kind, own=own, offload=enabled) for enabled in (0, 1))
    assert framework_memory.memory(away).total[0] <= framework_memory.memory(here).total[0] * (1 + 1e-12)
    assert float(framework_memory.memory(away).optimizer[0]) == 0
    assert float(framework_memory.on_host(here)[0]) == 0
    for first in (True, False) if not own else ():
        freed = framework_memory.of_stage(here, first).optimizer
        assert float(framework_memory.on_host(away)[0]) >= float(np.ravel(freed)[0]), "the freed bytes are on the host"


def test_host_memory_is_sixteen_bytes_per_weight() -> None:
    """Llama 3 70B in float32 with Adam: weights, gradients and two moments, over all ranks."""
    model = msgspec.convert(presets.load("llama3-70b").model, Model)
    row = dict.fromkeys(("tp", "pp", "cp", "ep", "dp_replicate", "interleave", "micro_batch_size"), 1)
    case = a_case(model, row | {"dp_shard": 8, "zero": 3, "activation_checkpoint": 2}, "all", offload=1)
    assert 8 * float(framework_memory.on_host(case)[0]) == pytest.approx(16 * 70.6e9, rel=0.01)


def test_host_update_time_follows_from_its_traffic() -> None:
    case = a_case(DENSE, dict.fromkeys(ROW, 1), "all", offload=1)
    seconds = float(offload.update_seconds(case, WHERE, Constants(), np.array([1e9]))[0])
    assert seconds == pytest.approx(1e9 * (2 * 8 + 4 + 2 * 4) / (563.2e9 / 8 * Constants().host_update))
    copied = float(offload.copy_seconds(WHERE, Constants(), np.array([63e9]))[0])
    assert copied == pytest.approx(1 / Constants().host_link, rel=1e-3)


ROW = (
    "tp",
    "pp",
    "cp",
    "ep",
    "dp_replicate",
    "dp_shard",
    "zero",
    "interleave",
    "micro_batch_size",
    "activation_checkpoint",
)


# The search


def tight(share: float, host: float = 1.0) -> Machine:
    """An H100 with the fraction `share` of its memory and `host` of its host's memory."""
    memory_, node = H100.device.memory, H100.host
    assert node is not None
    device = msgspec.structs.replace(H100.device, memory=msgspec.structs.replace(memory_, value=memory_.value * share))
    less = msgspec.structs.replace(node.memory, value=node.memory.value * host)
    return msgspec.structs.replace(H100, device=device, host=msgspec.structs.replace(node, memory=less))


def ranked(wanted: PlannerInput, where: Machine, framework: str, **more: Any) -> list[tuple[int, bool]]:
    refuses = transformer_ops.check if framework == "trainyard" else lambda _: None
    choices = search(wanted, where, FRAMEWORKS[framework], most=10**9, refuses=refuses, **more).choices
    return [(choice.plan.ledger.wall_ns, choice.plan.job.recipe.offload) for choice in choices]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("name", "share"), [("dense", 2e-4), ("dense", 4e-4), ("experts", 4e-4)])
def test_search_equals_costing_all_layouts_with_and_without_offload(framework: str, name: str, share: float) -> None:
    """Reference: all layouts are costed both ways; offloaded ones are expected only if none fits without."""
    runner, where = FRAMEWORKS[framework], tight(share)
    wanted = PlannerInput(MODELS[name], 4, 8, 8, 256)
    every = runner.layouts(wanted)
    usable, known = (
        where.device.memory.value * framework_memory.USABLE,
        constant_sets.choose(where, runner.software).values(),
    )
    fits, walls = [], []
    for layouts in (every, every.offloaded()):
        batch = layout_space.as_cases(wanted, layouts, runner.keeps).take(np.arange(len(every)))
        fits.append(framework_memory.memory(batch).total * framework_memory.RESERVED <= usable)
        walls.append(np.round(step.step(batch, WHERE, known).wall * 1e9))
    fits[1] &= runner.offloads(wanted, every) & (not fits[0].any())
    expected = sorted((int(wall), away) for away in (False, True) for wall in walls[away][fits[away]])
    if not expected:
        with refused(BadJob, wanted.model.name, "4 devices", units.show_size(usable)):
            ranked(wanted, where, framework)
        return
    layouts = sorted(ranked(wanted, where, framework))
    assert len(layouts) == len(expected) or framework == "trainyard", "the rules of trainyard's own trainer refuse some"
    if len(layouts) == len(expected):
        assert layouts == expected
    assert set(layouts) <= set(expected)


@pytest.mark.parametrize("framework", ["torchtitan", "deepspeed"])
def test_layouts_that_fit_are_not_offloaded(framework: str) -> None:
    wanted, where = PlannerInput(DENSE, 4, 8, 8, 256), tight(1e-3)
    plain = ranked(wanted._replace(fixed={"offload": 0}), where, framework)
    assert plain
    assert ranked(wanted, where, framework) == plain
    only = ranked(wanted._replace(fixed={"offload": 1}), where, framework)
    assert only
    assert all(away for _, away in only)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_native_rules_accept_all_offloaded_layouts(devices: int) -> None:
    wanted = PlannerInput(DENSE, devices, 8, 8, 256)
    runner = FRAMEWORKS["trainyard"]
    every = runner.layouts(wanted)
    every = every.keep(runner.offloads(wanted, every)).offloaded()
    assert len(every) or devices == 1
    for index in range(len(every)):
        rules.check(layout_space.job_of(wanted, every.row(index)))


def test_too_small_host_is_refused_with_the_arithmetic() -> None:
    wanted = PlannerInput(msgspec.convert(presets.load("llama3-70b").model, Model), 8, 8, 64, 8192)
    with refused(BadJob, "llama3-70b", "8 devices", "offloaded", "8 ranks = 1.1 TB", "900.0 GB", "228.9 GB") as raised:
        search(wanted, tight(1.0, host=0.5), FRAMEWORKS["torchtitan"])
    assert raised.value.next_step.endswith("devices would be enough.")
    enough = int(raised.value.next_step.split()[0].replace(",", ""))
    assert search(wanted._replace(devices=enough), tight(1.0, host=0.5), FRAMEWORKS["torchtitan"]).choices


@pytest.mark.parametrize(
    ("framework", "fixed", "values"),
    [
        ("megatron", {"offload": 2}, ["offload = 2"]),
        ("deepspeed", {"offload": 1, "pp": 2}, ["DeepSpeed", "12 layouts", "--fix offload"]),
        ("trainyard", {"offload": 1, "tp": 2}, ["our own runner", "101 layouts", "--fix offload"]),
        ("torchtitan", {"offload": 1, "pp": 2}, ["torchtitan", "36 layouts", "--fix offload"]),
    ],
)  # fmt: skip
def test_error_explains_why_offload_is_impossible(framework: str, fixed: dict[str, int], values: list[str]) -> None:
    with refused(BadJob, *values):
        ranked(PlannerInput(DENSE, 4, 8, 8, 256, fixed=fixed), H100, framework)


def test_offload_needs_a_host_in_the_machine_file() -> None:
    bare = msgspec.structs.replace(H100, host=None)
    wanted = PlannerInput(DENSE, 4, 8, 8, 256, fixed={"offload": 1})
    with refused(BadJob, "h100", "[host]", "--machine FILE"):
        ranked(wanted, bare, "megatron")
    small = msgspec.structs.replace(tight(1e-3), host=None)
    assert not any(away for _, away in ranked(wanted._replace(fixed={}), small, "deepspeed"))
    with refused(BadJob, "h100", "[host]", "--machine FILE"):
        cost_job(job(recipe={"offload": True}, dp_shard=2), bare, FRAMEWORKS["trainyard"])
    with refused(BadJob, "offload = 1", "--fix offload"):
        best_pipelines.find(wanted, fleet.parse_parts("h100:2,a100:2"), FRAMEWORKS["megatron"])


def test_host_of_a_machine_file_is_validated(tmp_path: Path) -> None:
    text = machine.known()["h100"].read_text()
    for change, *values in (
        (('kind = "host"', 'kind = "scale_up"'), "'scale_up'", "'host'", "$.host"),
        (("value = 63e9", "value = 0"), "PCIe 5.0 x16", "0 bytes/s", "$.host.link"),
        (("memory = { value = 2e12", "memory = { value = -1"), "-1.0 bytes", "$.host.memory"),
        (('vendor = "nvidia"', 'vendor = "cpu"'), "NVIDIA H100 SXM 80GB", "CPU", "host"),
    ):  # fmt: skip
        assert change[0] in text
        path = tmp_path / "mine.toml"
        path.write_text(text.replace(*change))
        with refused(BadFile, path, *values):
            machine.load(str(path))


@pytest.mark.parametrize("name", machine.known())
def test_host_bandwidth_of_a_rank_is_below_device_bandwidth(name: str) -> None:
    known = machine.load(name)
    where = hardware.of_machine(known, next(iter(known.device.peak)))
    if known.host is None:
        assert offload_variants.usable_memory(known).host == 0
        return
    assert float(where.host_bandwidth[0]) < float(where.bandwidth[0])
    room = offload_variants.usable_memory(known).host / offload.USABLE
    assert room * known.ranks_per_node == pytest.approx(known.host.memory.value)


# The command


ARGUMENTS = ("plan", "llama3-70b", "--machine", "h100", "--devices", "8", "--batch", "64", "--seq-len", "8192")


@pytest.mark.parametrize("framework", ["deepspeed", "torchtitan", "trainyard"])
def test_too_large_model_fits_with_offload(framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert answer([*ARGUMENTS, "--for", framework, "--out", str(out), "--full"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in ("dp_shard 8, offloaded", "In host memory 141.1", "Copy host to device", "Offloaded: the"):
        assert part in printed
    assert answer([*ARGUMENTS, "--for", framework, "--fix", "offload=0"]) == 2
    failure = capsys.readouterr().err
    assert code_of(failure) == "bad-job"
    assert missing_values(failure, "llama3-70b", "8 devices") == []
    check = ("plan", "check", str(out), "--model", "llama3-70b", "--machine", "h100", "--devices", "8")
    if framework == "trainyard":
        assert jobs.load(out).recipe.offload
        return
    assert answer([*check, "--seq-len", "8192", "--json"]) == 0
    first, second, *_ = json.loads(capsys.readouterr().out)["choices"]
    assert first["plan"]["job"]["recipe"]["offload"]
    assert first["plan"]["ledger"]["wall_ns"] == second["plan"]["ledger"]["wall_ns"]
    assert first["host_bytes"] == second["host_bytes"] > 1e11


def test_native_job_with_offload_has_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.toml"
    plain = jobs.load(TINY)
    layout = msgspec.structs.replace(plain.layout, dp_shard=2, dp_replicate=1, tp=1, pp=1, cp=1, ep=1, zero=3)
    for away in (False, True):
        recipe = msgspec.structs.replace(plain.recipe, offload=away, dtype="bfloat16")
        path.write_text(jobs.write(msgspec.structs.replace(plain, layout=layout, recipe=recipe)))
        choice = cost_job(jobs.load(path), H100, FRAMEWORKS["trainyard"])
        copied = {str(entry.account) for entry in choice.plan.ledger.entries if str(entry.account).startswith("copy/")}
        assert copied == ({"copy/h2d", "copy/d2h"} if away else set())
        assert (choice.host_bytes > 0) == away
