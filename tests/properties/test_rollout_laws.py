"""Laws of post-training steps: better hardware is never slower, more work is never faster, parts sum to the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.test_planner_laws import MODELS, faster_memory, wanted
from trainyard import machine as machines
from trainyard.errors import BadJob
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.post_training import decode_cost
from trainyard.predict.post_training.generation_search import (
    EngineOptions,
    Generation,
    fastest_generation,
    slowest_replica,
)
from trainyard.predict.post_training.rollout_defaults import MEMORY_SHARE
from trainyard.predict.post_training.rollout_workload import RolloutWorkload
from trainyard.predict.post_training.step_modes import RolloutStep, StepPlanner, StepSettings

MACHINES = st.sampled_from(["a100", "h100", "b200", "mi300x"])
TOLERANCE = 1 + 1e-9
EXAMPLE = Model(
    name="m", layers=24, hidden_size=2048, ffn_hidden_size=8192, heads=16, kv_heads=16, head_dim=128, vocab=32_768
)
SMALL_STEPS = st.builds(
    lambda prompts, samples, mean, longer, cv: work(
        prompts=prompts, samples=samples, response_tokens=mean, max_response_tokens=longer * mean, length_cv=cv
    ),
    st.sampled_from([4, 16, 64]), st.sampled_from([1, 8, 16]), st.sampled_from([64, 700, 4000]),
    st.sampled_from([1, 2, 6]), st.sampled_from([0.0, 0.3, 1.0]),
)  # fmt: skip


def work(**changes: Any) -> RolloutWorkload:
    sizes = {
        "prompts": 32, "samples": 8, "prompt_tokens": 256, "response_tokens": 1000, "max_response_tokens": 3000,
    }  # fmt: skip
    return RolloutWorkload(**(sizes | changes))


def generation_on(model: Model, machine: Machine, ranks: int, workload: RolloutWorkload) -> Generation:
    built = decode_cost.generation_model(machine, "megatron")
    return fastest_generation(model, built, ranks, workload, EngineOptions())


def planner(model: Model, machine: Machine, devices: int, workload: RolloutWorkload, **settings: bool) -> StepPlanner:
    return StepPlanner(
        model=model, wanted=wanted(model, machine, devices, 1),
        machine=decode_cost.generation_model(machine, "megatron"),
        framework=FRAMEWORKS["megatron"], workload=workload, engine=EngineOptions(),
        settings=StepSettings(**settings), refuses=lambda _: None,
    )  # fmt: skip


def steps_of(planned: StepPlanner) -> list[RolloutStep]:
    """The steps of all modes that fit."""
    steps: list[RolloutStep] = []
    try:
        steps.append(planned.colocated())
        if planned.wanted.devices >= 2 * planned.machine.machine.ranks_per_node:
            steps += planned.best_splits()
    except BadJob:
        pass
    return steps


@settings(max_examples=25, deadline=None)
@given(MODELS, MACHINES, SMALL_STEPS)
def test_more_memory_bandwidth_is_never_slower(model: Model, name: str, workload: RolloutWorkload) -> None:
    machine = machines.load(name)
    before = generation_on(model, machine, 8, workload).seconds
    assert generation_on(model, faster_memory(machine, 2.0), 8, workload).seconds <= before * TOLERANCE


@settings(max_examples=25, deadline=None)
@given(MODELS, MACHINES, SMALL_STEPS)
def test_more_ranks_never_generate_slower(model: Model, name: str, workload: RolloutWorkload) -> None:
    machine = machines.load(name)
    before = generation_on(model, machine, 8, workload).seconds
    assert generation_on(model, machine, 16, workload).seconds <= before * TOLERANCE


@settings(max_examples=25, deadline=None)
@given(MODELS, MACHINES, st.sampled_from([64, 300, 1500]), st.floats(1.0, 3.0), st.sampled_from([0.0, 0.3, 1.0]))
def test_longer_responses_are_never_faster(model: Model, name: str, mean: int, factor: float, cv: float) -> None:
    machine = machines.load(name)
    shorter = work(response_tokens=mean, max_response_tokens=6000, length_cv=cv)
    longer = work(response_tokens=round(mean * factor), max_response_tokens=6000, length_cv=cv)
    assert (
        generation_on(model, machine, 8, shorter).seconds
        <= generation_on(model, machine, 8, longer).seconds * TOLERANCE
    )


@settings(max_examples=25, deadline=None)
@given(MODELS, MACHINES, SMALL_STEPS)
def test_the_cache_never_exceeds_the_memory(model: Model, name: str, workload: RolloutWorkload) -> None:
    machine = machines.load(name)
    generation = generation_on(model, machine, 8, workload)
    assert (generation.simulated.cached <= generation.capacity).all()
    assert generation.weight_bytes + generation.cache_bytes <= machine.rank_memory * MEMORY_SHARE


@given(SMALL_STEPS, st.sampled_from([1, 3, 8]))
def test_slowest_replica_has_the_longest_response_of_each_rank(workload: RolloutWorkload, replicas: int) -> None:
    lengths, requests = slowest_replica(workload, replicas)
    every = np.sort(workload.lengths_at((np.arange(workload.sequences) + 0.5) / workload.sequences))[::-1]
    assert requests == len(lengths) == -(-workload.sequences // replicas)
    assert sorted(lengths, reverse=True) == list(every[::replicas])


@settings(max_examples=8, deadline=None)
@given(MODELS, st.sampled_from(["h100", "b200"]), SMALL_STEPS, st.booleans(), st.booleans())
def test_parts_sum_to_the_step(
    model: Model, name: str, workload: RolloutWorkload, reference: bool, critic: bool
) -> None:
    planned = planner(model, machines.load(name), 16, workload, reference=reference, critic=critic)
    steps = steps_of(planned)
    assert steps
    for step in steps:
        parts = {part.name: part for part in step.parts}
        assert step.wall_ns == sum(part.ns for part in step.parts)
        assert all(part.ns >= 0 and part.hidden_ns >= 0 for part in step.parts)
        assert 0 < step.busy_share <= 1
        if step.mode != "one-step-off":
            assert not any(part.hidden_ns for part in step.parts)
            continue
        trains = [parts["log_probs"], parts["training"]]
        sides = [
            parts["generation"].ns + parts["generation"].hidden_ns,
            sum(part.ns + part.hidden_ns for part in trains),
        ]
        assert step.wall_ns == max(sides) + parts["transfer"].ns


@settings(max_examples=8, deadline=None)
@given(MODELS, st.sampled_from(["h100", "mi300x"]), SMALL_STEPS)
def test_twice_the_devices_are_never_slower_in_the_best_mode(
    model: Model, name: str, workload: RolloutWorkload
) -> None:
    machine = machines.load(name)
    best = [min(step.wall_ns for step in steps_of(planner(model, machine, devices, workload))) for devices in (8, 32)]
    assert best[1] <= best[0] * TOLERANCE


@settings(max_examples=4, deadline=None)
@given(MODELS, SMALL_STEPS)
def test_best_split_is_that_of_all_splits(model: Model, workload: RolloutWorkload) -> None:
    planned = planner(model, machines.load("h100"), 40, workload)
    pairs = [planned.disaggregated(generating) for generating in (8, 16, 24, 32)]
    for index, best in enumerate(planned.best_splits()):
        assert best.wall_ns == min(pair[index].wall_ns for pair in pairs)


def test_splits_of_many_nodes_are_close_to_the_best_of_all() -> None:
    workload = work(prompts=1024, prompt_tokens=2000, response_tokens=300)
    planned = planner(EXAMPLE, machines.load("h100"), 8 * 20, workload)
    pairs = [planned.disaggregated(8 * nodes) for nodes in range(1, 20)]
    for index, best in enumerate(planned.best_splits()):
        assert best.wall_ns <= 1.001 * min(pair[index].wall_ns for pair in pairs)


def test_longer_side_of_a_step_at_the_same_time_is_exposed() -> None:
    """Long prompts and short responses: training takes longer than generation, and the other way round."""
    machine = machines.load("h100")
    training = planner(
        EXAMPLE, machine, 16, work(prompts=512, prompt_tokens=2000, response_tokens=20, max_response_tokens=40)
    )
    generation = planner(EXAMPLE, machine, 16, work(prompts=8, prompt_tokens=10))
    for planned, hidden in ((training, {"generation"}), (generation, {"log_probs", "training"})):
        _, step = planned.disaggregated(8)
        assert {part.name for part in step.parts if part.hidden_ns} == hidden
        assert all(part.ns == 0 for part in step.parts if part.hidden_ns)


def test_a_pass_less_and_a_smaller_model_take_less() -> None:
    model, machine = EXAMPLE, machines.load("h100")
    full = planner(model, machine, 8, work(), critic=True).colocated()
    without = planner(model, machine, 8, work()).colocated()
    least = planner(model, machine, 8, work(), reference=False, old_log_probs=False).colocated()
    assert full.wall_ns > without.wall_ns > least.wall_ns
    assert {part.name: part.ns for part in least.parts}["log_probs"] == 0


def test_state_is_offloaded_if_it_leaves_too_little_memory_for_the_cache() -> None:
    model, machine = EXAMPLE, machines.load("h100")
    small = planner(model, machine, 8, work()).colocated()
    assert small.offloaded_bytes == 0
    large = RolloutWorkload(
        prompts=512, samples=16, prompt_tokens=256, response_tokens=8000, max_response_tokens=9000, length_cv=0.3
    )
    offloading = planner(model, machine, 8, large).colocated()
    assert offloading.offloaded_bytes == offloading.training.state_bytes


def test_what_does_not_fit_for_generation_is_explained() -> None:
    built = decode_cost.generation_model(machines.load("h100"), "megatron")
    with pytest.raises(BadJob, match=r"does not fit for generation at any tp up to 8: a rank has 436.4 MB of weights"):
        fastest_generation(EXAMPLE, built, 8, work(), EngineOptions(memory_share=0.001))
    with pytest.raises(BadJob, match="cannot be divided over tp 3"):
        fastest_generation(EXAMPLE, built, 8, work(), EngineOptions(tp=3))
