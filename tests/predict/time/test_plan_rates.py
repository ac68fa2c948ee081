"""Predictions with LoRA adapters, recomputed products and devices of several ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from trainyard import machine
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs import cases, hardware
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.memory import framework_memory
from trainyard.predict.time import step
from trainyard.recipe import Recipe

H100 = machine.load("h100")
WHERE = hardware.of_machine(H100, "bfloat16", "float8")
MODEL = Model(layers=4, hidden_size=256, ffn_hidden_size=768, heads=8, kv_heads=4, head_dim=32, vocab=1024)


def case(layout: dict[str, int], activation_checkpoint: str = "none") -> Cases:
    job = Job(
        name="a", model=MODEL, layout=Layout(**layout),
        recipe=Recipe(seq_len=512, tokens_per_step=512 * 16, activation_checkpoint=activation_checkpoint,
                      dtype="bfloat16"),
    )  # fmt: skip
    return replace(cases.of_jobs([job]), native=cases.column(0))


def seconds(case: Cases) -> float:
    return float(step.step(case, WHERE, Constants()).wall[0])


LAYOUTS = st.sampled_from([{}, {"dp_shard": 4, "zero": 3}, {"dp_shard": 2, "zero": 1, "tp": 2}, {"pp": 2}])


@given(LAYOUTS, st.integers(1, 64), st.sampled_from(["none", "selective", "full"]))
def test_adapters_need_less_memory_and_grow_with_rank(
    layout: dict[str, int], rank: int, activation_checkpoint: str
) -> None:
    whole = case(layout, activation_checkpoint)
    few, more = (replace(whole, adapters=cases.column(float(r))) for r in (rank, 2 * rank))
    held = [framework_memory.of_stage(variant, first=True) for variant in (whole, few, more)]
    for part in ("gradients", "optimizer"):
        sizes = [float(np.ravel(getattr(memory, part))[0]) for memory in held]
        assert sizes[1] < sizes[2] < sizes[0], part
    adapted, frozen = (float(np.ravel(held[index].parameters)[0]) for index in (1, 0))
    assert frozen < adapted < 1.1 * frozen
    assert float(np.ravel(held[1].activations)[0]) <= float(np.ravel(held[0].activations)[0])
    assert seconds(few) <= seconds(more)


def large(activation_checkpoint: str = "none") -> Cases:
    """A case large enough that the device never waits for the host."""
    sizes = {"width": 8192, "ffn": 28672, "heads": 64, "head_dim": 128, "kv_heads": 8}
    return replace(case({}, activation_checkpoint), **{name: cases.column(size) for name, size in sizes.items()})


def test_a_frozen_model_takes_less_time() -> None:
    assert seconds(replace(large(), adapters=cases.column(16))) < 0.85 * seconds(large())


@pytest.mark.parametrize("activation_checkpoint", ["none", "selective"])
def test_recomputed_products_trade_time_for_memory(activation_checkpoint: str) -> None:
    plain = large(activation_checkpoint)
    half = replace(plain, recomputed_share=cases.column(0.5))
    activations = [
        float(np.ravel(framework_memory.of_stage(variant, first=True).activations)[0]) for variant in (plain, half)
    ]
    if activation_checkpoint == "none":
        assert (seconds(half), activations[1]) == (seconds(plain), activations[0])
    else:
        assert seconds(half) > seconds(plain)
        assert activations[1] < activations[0]


@pytest.mark.parametrize("name", ["trn1", "trn2", "trn3"])
def test_ranks_of_a_device_share_it(name: str) -> None:
    whole = machine.load(name)
    ranks = whole.device.ranks
    assert ranks > 1
    alone = changed(whole, device=changed(whole.device, ranks=1))
    device, part = hardware.of_machine(alone, "bfloat16"), hardware.of_machine(whole, "bfloat16")
    for field in ("peak", "memory", "bandwidth", "intra_node", "inter_node"):
        assert float(getattr(part, field)[0]) * ranks == pytest.approx(float(getattr(device, field)[0]))
    assert float(part.per_node[0]) == ranks * whole.per_node
