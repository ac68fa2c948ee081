"""The search for the fastest layout only, and the lower bounds by which it leaves layouts out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trainyard import machine
from trainyard.api.fabric_options import Fabric, with_fabric
from trainyard.api.plan_request import read_request
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.predict.inputs import layout_space, machine_model
from trainyard.predict.inputs.framework_support import FRAMEWORKS, Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search import narrow_search, search_space
from trainyard.predict.search.search import search
from trainyard.predict.search.work_floor import step_floors
from trainyard.predict.time import step

H100 = machine.load("h100")
OVERLAPPING = FRAMEWORKS["megatron"]._replace(keeps=FRAMEWORKS["megatron"].keeps._replace(overlaps_dispatch=True))
SIMULATED = 400
"""Layouts of each search that are simulated."""


def wanted_of(name: str, devices: int, samples: int, **fixed: int) -> PlannerInput:
    return PlannerInput(read_request(name, None, None, None).model, devices, 8, samples, 4096, fixed=fixed)


@pytest.mark.parametrize(
    ("framework", "name", "target"),
    [
        *((FRAMEWORKS[framework], "llama3-8b", H100) for framework in FRAMEWORKS),
        *((FRAMEWORKS[framework], "mixtral-8x7b", H100) for framework in ("trainyard", "torchtitan")),
        (FRAMEWORKS["megatron"], "nemotron-h-56b", H100),
        (OVERLAPPING, "deepseek-v3", H100),
        (FRAMEWORKS["megatron"], "llama3-8b", with_fabric(H100, Fabric(oversubscription=4, pod_nodes=2))),
    ],
)
def test_no_step_is_shorter_than_its_floor(framework: Framework, name: str, target: Machine) -> None:
    wanted = wanted_of(name, 32, 32)
    layouts, model = framework.layouts(wanted), machine_model.build(target, framework.software, wanted.dtype)
    floors = step_floors(wanted, layouts, framework, model)
    rows = np.random.default_rng(0).permutation(len(layouts))[:SIMULATED]
    cases = layout_space.as_cases(wanted, layouts.keep(rows), framework.keeps)
    walls_s = step.step(cases, model.hardware, model.values).wall
    assert (floors[rows] <= walls_s * (1 + 1e-9)).all()
    assert np.median(walls_s / floors[rows]) < 3, "such floors would not leave out any layout"


def test_floors_are_those_of_each_layout_alone() -> None:
    framework, wanted = FRAMEWORKS["megatron"], wanted_of("mixtral-8x7b", 32, 32)
    layouts, model = framework.layouts(wanted), machine_model.build(H100, framework.software, wanted.dtype)
    floors = step_floors(wanted, layouts, framework, model)
    for row in np.random.default_rng(0).permutation(len(layouts))[:20]:
        (alone,) = step_floors(wanted, layouts.keep(np.array([row])), framework, model)
        assert alone == pytest.approx(floors[row], rel=1e-12)


def test_groups_differ_in_activation_checkpointing_only() -> None:
    layouts = FRAMEWORKS["megatron"].layouts(wanted_of("llama3-8b", 16, 16))
    others = [layouts.columns[axis] for axis in layout_space.AXES if axis != "activation_checkpoint"]
    keys = list(zip(*(values.tolist() for values in others), strict=True))
    assert int(layout_space.starts_group(layouts).sum()) == len(set(keys)) < len(layouts)


def no_tensor_parallelism(job: Job) -> None:
    if job.layout.tp > 1:
        raise BadJob("no tensor parallelism here.")


@pytest.mark.parametrize("refuses", [lambda _: None, no_tensor_parallelism], ids=["all", "refused"])
@pytest.mark.parametrize(
    ("framework", "name", "devices"),
    [("megatron", "llama3-70b", 256), ("torchtitan", "llama3-70b", 128), ("trainyard", "llama3-8b", 64),
     ("deepspeed", "llama3-8b", 16), ("megatron", "mixtral-8x7b", 64)],
)  # fmt: skip
def test_the_fastest_of_few_layouts_is_that_of_all(
    framework: str, name: str, devices: int, refuses: Callable[[Job], None]
) -> None:
    wanted, runner = wanted_of(name, devices, 256), FRAMEWORKS[framework]
    layouts = search_space.enumerate_layouts(wanted, H100, runner)
    result = narrow_search.find_fastest(wanted, layouts, H100, runner, refuses)
    space = search_space.of_layouts(wanted, layouts, H100, runner, only_fastest=True)
    timed, job = next(search_space.runnable_cases(space, space.by_time(), refuses, []))
    if result is None:  # all have to be searched
        return
    few, (few_timed, few_job) = result
    assert len(few.sizes.layouts) < len(layouts) / 2
    assert few_job == job
    assert (few_timed.wall_seconds, few_timed.required) == (timed.wall_seconds, timed.required)


def test_most_layouts_are_left_out_before_their_memory_is_computed() -> None:
    wanted, runner = wanted_of("llama3-70b", 256, 256), FRAMEWORKS["megatron"]
    layouts = search_space.enumerate_layouts(wanted, H100, runner)
    result = narrow_search.find_fastest(wanted, layouts, H100, runner, lambda _: None)
    assert result
    assert len(result[0].sizes.layouts) < len(layouts) / 2


def test_layouts_that_offload_are_left_to_the_full_search() -> None:
    wanted, runner = wanted_of("llama3-8b", 16, 16, offload=1), FRAMEWORKS["megatron"]
    layouts = search_space.enumerate_layouts(wanted, H100, runner)
    assert narrow_search.find_fastest(wanted, layouts, H100, runner, lambda _: None) is None


def test_the_front_needs_few_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated: list[int] = []
    simulate = step.step

    def count(cases: Any, *more: Any) -> Any:
        simulated.append(len(cases))
        return simulate(cases, *more)

    monkeypatch.setattr(step, "step", count)
    front = search(wanted_of("gpt3-175b", 256, 512), H100, FRAMEWORKS["megatron"], most=1, front=True).front
    assert len(front) > 10
    assert sum(simulated) < 2 * len(front)
