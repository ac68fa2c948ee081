"""Laws of the planner: better hardware is never slower, and memory grows with the micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from trainyard import machine
from trainyard.errors import BadJob
from trainyard.machine import Claim, Machine, SwitchLevel
from trainyard.model import Model
from trainyard.predict.economics.training_budget import NO_BUDGET
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search.search import fastest, search


def decoder(heads: int, layers: int, experts: int) -> Model:
    moe = {"experts": experts, "top_k": 2, "moe_ffn_hidden_size": 128 * heads} if experts else {}
    return Model(
        name="m", layers=layers, hidden_size=128 * heads, ffn_hidden_size=512 * heads, heads=heads, kv_heads=heads,
        head_dim=128, vocab=32_768, **moe,
    )  # fmt: skip


MODELS = st.builds(decoder, st.sampled_from([8, 16, 32]), st.sampled_from([8, 24]), st.sampled_from([0, 8]))
MACHINES = st.sampled_from(["a100", "h100", "b200", "mi300x", "trn2"])
TOLERANCE = 1 + 1e-9


def wanted(model: Model, on: Machine, devices: int, samples: int) -> PlannerInput:
    """A search on so many devices of a machine, with sequences of 2,048 tokens."""
    ranks = devices * on.device.ranks
    return PlannerInput(model=model, devices=ranks, per_node=on.ranks_per_node, samples=samples, seq_len=2048)


def ns_per_sample(request: PlannerInput, on: Machine, framework: str) -> float:
    """Step time of the fastest layout in ns over samples; infinite if none fits."""
    try:
        point = fastest(request, on, FRAMEWORKS[framework], NO_BUDGET, lambda _: None).point
    except BadJob:
        return float("inf")
    return point.wall_ns / request.samples


def scaled(claim: Claim, factor: float) -> Claim:
    return replace(claim, value=claim.value * factor)


def faster_memory(known: Machine, factor: float) -> Machine:
    return replace(known, device=replace(known.device, bandwidth=scaled(known.device.bandwidth, factor)))


def more_memory(known: Machine, factor: float) -> Machine:
    return replace(known, device=replace(known.device, memory=scaled(known.device.memory, factor)))


def faster_links(known: Machine, factor: float) -> Machine:
    assert known.inter_node is not None
    return replace(known, inter_node=replace(known.inter_node, bandwidth=scaled(known.inter_node.bandwidth, factor)))


@pytest.mark.parametrize("improve", [faster_memory, more_memory, faster_links])
@settings(max_examples=15, deadline=None)
@given(MODELS, MACHINES, st.sampled_from(["megatron", "torchtitan"]), st.floats(1.0, 4.0))
def test_better_hardware_is_never_slower(
    improve: Callable[[Machine, float], Machine], model: Model, name: str, framework: str, factor: float
) -> None:
    known = machine.load(name)
    request = wanted(model, known, 16, 64)
    before = ns_per_sample(request, known, framework)
    assert ns_per_sample(request, improve(known, factor), framework) <= before * TOLERANCE


def with_pods(known: Machine, *levels: tuple[int, float], latency_s: float = 0.0) -> Machine:
    """The machine with levels of switches: (nodes of a pod, oversubscription), and the latency of each."""
    switches = (
        SwitchLevel(
            name="pod", nodes=nodes, oversubscription=Claim(value=ratio, unit="ratio", source="a test"),
            latency=Claim(value=latency_s, unit="s", source="a test"),
        )
        for nodes, ratio in levels
    )  # fmt: skip
    return replace(known, fabric=tuple(switches))


NETWORKS = st.sampled_from(["a100", "h100", "b200", "mi300x"])
FRAMEWORK_NAMES = st.sampled_from(["trainyard", "megatron", "torchtitan"])


@settings(max_examples=4, deadline=None)
@given(MODELS, NETWORKS, FRAMEWORK_NAMES, st.floats(1.0, 8.0), st.floats(1.0, 8.0), st.floats(1e-6, 1e-4))
def test_better_networks_of_switches_are_never_slower(
    model: Model, name: str, framework: str, ratio: float, factor: float, latency_s: float
) -> None:
    known = machine.load(name)
    networks = [
        known,
        with_pods(known, (2, 1.0), (4, 1.0)),
        with_pods(known, (2, 1.0), (4, ratio)),
        with_pods(known, (2, 1.0), (4, ratio * factor)),
        with_pods(known, (2, factor), (4, ratio * factor)),
        with_pods(known, (2, factor), (4, ratio * factor), latency_s=latency_s),
        with_pods(known, (2, factor), (4, ratio * factor), latency_s=2 * latency_s),
    ]
    times = [ns_per_sample(wanted(model, known, 64, 64), network, framework) for network in networks]
    assert times[0] == times[1], "an oversubscription of 1 is the ideal network"
    for better, worse in pairwise(times):
        assert better <= worse * TOLERANCE


@settings(max_examples=4, deadline=None)
@given(MODELS, NETWORKS, FRAMEWORK_NAMES)
def test_rails_with_full_bandwidth_are_the_ideal_network(model: Model, name: str, framework: str) -> None:
    known = machine.load(name)
    leaf, spine = with_pods(known, (2, 1.0), (4, 1.0)).fabric
    rails = replace(known, fabric=(replace(leaf, kind="rail", pxn=False), spine))
    request = wanted(model, known, 64, 64)
    assert ns_per_sample(request, known, framework) == ns_per_sample(request, rails, framework)


@settings(max_examples=15, deadline=None)
@given(MODELS, MACHINES, st.sampled_from(["megatron", "torchtitan"]))
def test_more_devices_train_more_samples_per_second(model: Model, name: str, framework: str) -> None:
    known = machine.load(name)
    times = [ns_per_sample(wanted(model, known, devices, 8 * devices), known, framework) for devices in (8, 16, 32)]
    for fewer, more in pairwise(times):
        assert more <= fewer * TOLERANCE


@settings(max_examples=15, deadline=None)
@given(MODELS, MACHINES, st.sampled_from(["megatron", "torchtitan", "deepspeed"]))
def test_memory_grows_with_the_micro_batch(model: Model, name: str, framework: str) -> None:
    known = machine.load(name)
    fixed = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp_replicate": 1, "activation_checkpoint": 0, "zero": 3}
    reserved: list[int] = []
    for size in (1, 2, 4):
        request = wanted(model, known, 16, 64)._replace(fixed={**fixed, "micro_batch_size": size})
        try:
            result = search(request, known, FRAMEWORKS[framework], most=1)
        except BadJob:
            break
        reserved.append(result.choices[0].reserved)
    assume(len(reserved) > 1)
    assert all(smaller <= larger for smaller, larger in pairwise(reserved))


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["tp", "pp", "cp", "dp_replicate", "dp_shard", "micro_batch_size", "zero", "interleave"]),
    st.sampled_from([1, 2, 4, 8]), st.sampled_from(["megatron", "torchtitan", "deepspeed", "trainyard"]),
)  # fmt: skip
def test_fixed_axes_have_their_value_in_every_layout(axis: str, value: int, framework: str) -> None:
    known = machine.load("h100")
    request = wanted(decoder(16, 24, 0), known, 16, 64)._replace(fixed={axis: value})
    try:
        result = search(request, known, FRAMEWORKS[framework])
    except BadJob:
        return
    for choice in result.choices:
        job = choice.plan.job
        owner = job.recipe if axis == "micro_batch_size" else job.layout
        assert getattr(owner, axis) == value
