"""What a step is predicted to do less of, or to share: adapters beside frozen weights, tokens that several experts of a
place take, products made again, devices of several ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from trainyard import machine
from trainyard.job import Job, Layout, Model, Recipe
from trainyard.predict.inputs import cases, hardware
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.memory import framework_memory
from trainyard.predict.time import collective_time, step
from trainyard.predict.time.collective_time import RankGroup

H100 = machine.load("h100")
WHERE = hardware.of_machine(H100, "bfloat16", "float8")
MODEL = Model(layers=4, width=256, ffn=768, heads=8, kv_heads=4, head_dim=32, vocab=1024)


def case(layout: dict[str, int], remat: str = "none") -> Cases:
    job = Job(
        name="a", model=MODEL, layout=Layout(**layout),
        recipe=Recipe(seq_len=512, tokens_per_step=512 * 16, remat=remat, dtype="bfloat16"),
    )  # fmt: skip
    return replace(cases.of_jobs([job]), own=cases.column(0))


def seconds(one: Cases) -> float:
    return float(step.step(one, WHERE, Constants()).wall[0])


LAYOUTS = st.sampled_from([{}, {"dp_shard": 4, "zero": 3}, {"dp_shard": 2, "zero": 1, "tp": 2}, {"pp": 2}])


@given(LAYOUTS, st.integers(1, 64), st.sampled_from(["none", "op", "full"]))
def test_adapters_keep_and_train_less_and_more_of_them_more(layout: dict[str, int], rank: int, remat: str) -> None:
    whole = case(layout, remat)
    few, more = (replace(whole, adapters=cases.column(float(r))) for r in (rank, 2 * rank))
    held = [framework_memory.of_stage(one, first=True) for one in (whole, few, more)]
    for part in ("gradients", "optimizer"):
        sizes = [float(np.ravel(getattr(one, part))[0]) for one in held]
        assert sizes[1] < sizes[2] < sizes[0], part
    assert float(np.ravel(held[1].parameters)[0]) == float(np.ravel(held[0].parameters)[0])
    assert float(np.ravel(held[1].activations)[0]) <= float(np.ravel(held[0].activations)[0])
    assert seconds(few) <= seconds(more)


def large(remat: str = "none") -> Cases:
    """One in which no device waits for the host."""
    sizes = {"width": 8192, "ffn": 28672, "heads": 64, "head_dim": 128, "kv_heads": 8}
    return replace(case({}, remat), **{name: cases.column(size) for name, size in sizes.items()})


def test_a_frozen_model_takes_less_time() -> None:
    assert seconds(replace(large(), adapters=cases.column(16))) < 0.85 * seconds(large())


@pytest.mark.parametrize("where", ["none", "op"])
def test_products_made_again_take_time_and_leave_memory(where: str) -> None:
    one = large(where)
    half = replace(one, remade=cases.column(0.5))
    kept = [float(np.ravel(framework_memory.of_stage(some, first=True).activations)[0]) for some in (one, half)]
    if where == "none":
        assert (seconds(half), kept[1]) == (seconds(one), kept[0])
    else:
        assert seconds(half) > seconds(one)
        assert kept[1] < kept[0]


def places_met(places: int, experts: int, chosen: int) -> float:
    """The mean number of places that have one of the experts a token chose, each expert as likely, by counting."""
    per_place = experts // places
    every = list(product(range(experts), repeat=chosen))
    return sum(len({expert // per_place for expert in one}) for one in every) / len(every)


@pytest.mark.parametrize(("places", "experts", "chosen"), [(2, 4, 1), (2, 4, 2), (4, 8, 3), (4, 4, 4), (8, 8, 2)])
def test_a_token_goes_once_to_each_place(places: int, experts: int, chosen: int) -> None:
    """Experts are drawn with replacement here and there, as the formula has it."""
    who = RankGroup(cases.column(places), cases.column(places))
    fast = Constants()._replace(inside_s=1e-30, dispatch=1.0)
    took = float(collective_time.dispatch(WHERE, fast, who, cases.column(1.0), cases.column(chosen))[0])
    copies = places_met(places, experts, chosen) * (places - 1) / places
    assert took == pytest.approx(copies / 450e9, rel=1e-6)


@given(st.sampled_from([2, 4, 8, 16, 64]), st.integers(1, 16))
def test_tokens_sent_once_take_no_longer_than_one_copy_an_expert(ranks: int, chosen: int) -> None:
    who = collective_time.group(WHERE, cases.column(ranks), np.ones(1))
    once = collective_time.dispatch(WHERE, Constants(), who, cases.column(1e9), cases.column(chosen))
    each = collective_time.exchange(WHERE, Constants(), who, cases.column(1e9 * chosen))
    # Within a node nothing goes twice; over nodes it is handed on inside, which the plain exchange does not need.
    inside = collective_time.gather(WHERE, Constants(), who, cases.column(1e9 * chosen))
    assert float(once[0]) <= max(float(each[0]), float(inside[0])) * (1 + 1e-9) + 1e-4


@pytest.mark.parametrize("name", ["trn1", "trn2", "trn3"])
def test_ranks_of_a_device_share_it(name: str) -> None:
    whole = machine.load(name)
    ranks = whole.device.ranks
    assert ranks > 1
    alone = changed(whole, device=changed(whole.device, ranks=1))
    one, part = hardware.of_machine(alone, "bfloat16"), hardware.of_machine(whole, "bfloat16")
    for what in ("peak", "memory", "bandwidth", "inside", "between"):
        assert float(getattr(part, what)[0]) * ranks == pytest.approx(float(getattr(one, what)[0]))
    assert float(part.per_node[0]) == ranks * whole.per_node
