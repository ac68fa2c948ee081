"""Offloaded activations: less memory on the device, bytes on the host, and copies that never speed up a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.predict.test_plan import MODELS, ROWS, WHERE, single_case, spent
from trainyard import machine
from trainyard.api.plan_request import read_request
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs import cases
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.memory import framework_memory
from trainyard.predict.search.layout_cost import LayoutCost, cost_job
from trainyard.predict.time import step
from trainyard.recipe import Recipe

LAYERS = st.integers(0, 4)


def with_layers(case: Cases, layers: int) -> Cases:
    return replace(case, offloaded_layers=cases.column(layers))


@given(st.sampled_from(list(MODELS.values())), ROWS, LAYERS)
def test_more_offloaded_layers_need_no_more_memory_and_no_less_time(
    model: Model, row: dict[str, int], layers: int
) -> None:
    for hardware in (WHERE, replace(WHERE, host_link=WHERE.host_link * 1e6, host_bandwidth=WHERE.host_bandwidth * 1e6)):
        case = single_case(model, row | {"offload": 0})
        fewer, more = with_layers(case, layers), with_layers(case, min(layers + 1, 4))
        memories = [framework_memory.memory(each) for each in (fewer, more)]
        assert memories[1].total[0] <= memories[0].total[0] * (1 + 1e-12)
        assert all(np.min(part) >= 0 for part in memories[1])
        assert framework_memory.on_host(more)[0] >= framework_memory.on_host(fewer)[0]
        steps = [step.step(each, hardware, Constants()) for each in (fewer, more)]
        assert steps[1].wall[0] >= steps[0].wall[0] * (1 - 1e-12)
        assert spent(steps[1]) == pytest.approx(steps[1].wall, rel=1e-9)
        assert step.bound(more, hardware, Constants())[0] <= steps[1].wall[0] * (1 + 1e-9)


def llama(framework: str, checkpoint: Literal["none", "full"], layers: int) -> LayoutCost:
    """A step of Llama 3 8B on 8 devices, with 4 micro-batches of 8,192 tokens on each."""
    recipe = Recipe(
        seq_len=8192, tokens_per_step=8192 * 32, dtype="bfloat16", activation_checkpoint=checkpoint
    )  # fmt: skip
    model = read_request("llama3-8b", None, None, None).model
    assert isinstance(model, Model)
    job = Job(name="m", model=model, layout=Layout(dp_shard=8), recipe=recipe)
    used = FRAMEWORKS[framework]
    columns = {"offloaded_layers": float(layers)} if layers else {}
    return cost_job(job, machine.load("h200"), used._replace(keeps=used.keeps._replace(columns=columns)))


def test_inputs_of_recomputed_layers_leave_the_device() -> None:
    """By hand: the input of a layer is 8,192 x 4,096 values of 2 bytes; 1 layer and 2 buffers stay on the device."""
    layer_bytes = 8192 * 4096 * 2
    here, away = (llama("torchtitan", "full", layers) for layers in (0, 31))
    assert here.plan.memory["activation"] - away.plan.memory["activation"] == (32 - 3) * layer_bytes
    assert (here.host_bytes, away.host_bytes) == (0, 31 * layer_bytes)
    assert {part for part in here.plan.memory if here.plan.memory[part] != away.plan.memory[part]} == {"activation"}
    assert (here.plan.calibrated, away.plan.calibrated) == (True, False)


def test_copies_take_the_time_of_their_bytes_on_the_host_link() -> None:
    """Exposed and hidden time of each direction, over 4 micro-batches: the bytes, and the latency of 32 copies."""
    cost = llama("megatron", "none", 24)
    h200 = machine.load("h200")
    assert h200.host is not None
    link, latency = h200.host.link.bandwidth.value, h200.host.link.latency.value
    rate = min(link, h200.host.bandwidth.value / 8) * 0.8
    expected_s = 4 * (cost.host_bytes / rate + 32 * latency)
    for account in ("copy/d2h", "copy/h2d"):
        (entry,) = [entry for entry in cost.plan.ledger.entries if str(entry.account) == account]
        assert (entry.ns + entry.hidden_ns) / 1e9 == pytest.approx(expected_s, rel=1e-6), account
        assert entry.hidden_ns > 0
