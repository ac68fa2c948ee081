"""Predictions with LoRA adapters, deduplicated expert dispatch, recomputed products and devices of several ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

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
from trainyard.predict.time import collective_time, step
from trainyard.predict.time.collective_time import RankGroup
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


def mean_places(places: int, experts: int, chosen: int) -> float:
    """Mean number of places with at least one of a token's chosen experts, by enumeration."""
    per_place = experts // places
    every = list(product(range(experts), repeat=chosen))
    return sum(len({expert // per_place for expert in draw}) for draw in every) / len(every)


@pytest.mark.parametrize(("places", "experts", "chosen"), [(2, 4, 1), (2, 4, 2), (4, 8, 3), (4, 4, 4), (8, 8, 2)])
def test_a_token_is_sent_once_to_each_place(places: int, experts: int, chosen: int) -> None:
    """Experts are drawn with replacement, as in the formula."""
    ranks = RankGroup(cases.column(places), cases.column(places))
    fast = Constants()._replace(intra_node_s=1e-30, dispatch=1.0)
    dispatch_s = float(collective_time.dispatch(WHERE, fast, ranks, cases.column(1.0), cases.column(chosen))[0])
    copies = mean_places(places, experts, chosen) * (places - 1) / places
    assert dispatch_s == pytest.approx(copies / 450e9, rel=1e-6)


@given(st.sampled_from([2, 4, 8, 16, 64]), st.integers(1, 16))
def test_deduplicated_dispatch_is_never_slower(ranks: int, chosen: int) -> None:
    group = collective_time.group(WHERE, cases.column(ranks), np.ones(1))
    once = collective_time.dispatch(WHERE, Constants(), group, cases.column(1e9), cases.column(chosen))
    each = collective_time.exchange(WHERE, Constants(), group, cases.column(1e9 * chosen))
    # Within a node no token is sent twice; over nodes it is forwarded inside, which the plain all-to-all does not need.
    inside = collective_time.gather(WHERE, Constants(), group, cases.column(1e9 * chosen))
    assert float(once[0]) <= max(float(each[0]), float(inside[0])) * (1 + 1e-9) + 1e-4


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
