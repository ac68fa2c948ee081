"""Prediction intervals: they widen with the distance from what was fitted, and say whether they are calibrated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from trainyard import machine as machines
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs import cases, constant_sets, machine_model
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.fitted_range import FEATURES, FORMAT, features, range_of
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.prediction_interval import (
    ASSUMED_HIGH,
    ASSUMED_LOW,
    Distance,
    error_scale,
    interval_of,
    intervals_of,
)
from trainyard.predict.search.layout_cost import cost_job
from trainyard.recipe import Recipe

SCALE = error_scale()
DISTANCES = st.builds(
    Distance, kind=st.sampled_from(sorted(SCALE.kinds)), owners=st.integers(1, 5), machine_fitted=st.booleans(),
    same_software=st.booleans(), outside=st.fixed_dictionaries({"width": st.floats(0, SCALE.most_doublings / 2)}),
    above_largest=st.floats(0, SCALE.most_above_largest), host_share=st.floats(0, 0.5),
    attention_share=st.floats(0, SCALE.most_attention),
)  # fmt: skip


@given(near=DISTANCES)
def test_a_greater_distance_never_narrows_the_interval(near: Distance) -> None:
    interval = SCALE.interval(near)
    assert interval.calibrated
    assert interval.low < 1 < interval.high
    for far in (
        near._replace(machine_fitted=False), near._replace(same_software=False), near._replace(owners=1),
        near._replace(outside={"width": 2 * near.doublings}), near._replace(host_share=2 * near.host_share),
        near._replace(outside={**near.outside, FORMAT: 1.0}),
    ):  # fmt: skip
        wider = SCALE.interval(far)
        assert wider.low <= interval.low
        assert wider.high >= interval.high


def test_the_share_of_attention_is_stated_in_percent_of_the_step() -> None:
    """A step of which attention takes 97 % grows to 1.97 times, if attention takes twice as long."""
    near = Distance(kind="dense", owners=2, machine_fitted=True, same_software=True, outside={})
    reason = SCALE.interval(near._replace(attention_share=float(np.log2(1.97)))).uncalibrated_because
    assert "attention takes 97 %" in reason
    assert f"up to {100 * (2**SCALE.most_attention - 1):.0f} %" in reason


def test_another_number_format_counts_once_and_not_as_a_doubling() -> None:
    near = Distance(kind="dense", owners=2, machine_fitted=True, same_software=True, outside={})
    fp8 = near._replace(outside={FORMAT: 1.0})
    assert fp8.doublings == 0
    assert not fp8.format_fitted
    assert SCALE.scale(fp8) ** 2 == pytest.approx(SCALE.scale(near) ** 2 + SCALE.other_format**2)
    assert SCALE.interval(fp8._replace(outside={FORMAT: 1.0, "width": SCALE.most_doublings})).calibrated


def test_distances_and_kinds_without_measurements_are_not_calibrated() -> None:
    near = Distance(kind="dense", owners=2, machine_fitted=True, same_software=True, outside={})
    assert SCALE.interval(near).calibrated
    for far in (
        near._replace(outside={"width": SCALE.most_doublings * 1.01}),
        near._replace(outside={"ranks": SCALE.most_ranks + 0.01}),
        near._replace(above_largest=SCALE.most_above_largest + 0.01),
        near._replace(attention_share=SCALE.most_attention + 0.01),
        near._replace(kind="pictures"),
    ):
        interval = SCALE.interval(far)
        assert interval[:2] == (ASSUMED_LOW, ASSUMED_HIGH)
        assert interval.uncalibrated_because
    for within in (
        near._replace(outside={"ranks": SCALE.most_ranks}),
        near._replace(above_largest=SCALE.most_above_largest),
        near._replace(attention_share=SCALE.most_attention),
    ):
        assert SCALE.interval(within).calibrated


@pytest.mark.parametrize(
    ("devices", "because"),
    [(10_240, ""), (32_768, ""), (36_864, "3.6 times"), (10**5, "9.8 times"), (10**6, "6.6 doublings")],
)
def test_more_ranks_than_left_out_trainings_are_not_calibrated(devices: int, because: str) -> None:
    """Multiples are those of the largest fitted training, 10,240 ranks."""
    h100 = machine_model.build(machines.load("h100"), "megatron", "bfloat16")
    interval = interval_of(h100, case(dp_shard=devices / 2, samples=4.0 * devices))
    assert interval.calibrated == (not because)
    assert because in interval.uncalibrated_because


def example() -> Job:
    """A dense decoder of 7 billion parameters on 64 devices."""
    model = Model(
        layers=32, hidden_size=4096, ffn_hidden_size=11008, heads=32, kv_heads=32, head_dim=128, vocab=32000
    )  # fmt: skip
    recipe = Recipe(seq_len=4096, tokens_per_step=4096 * 256, micro_batch_size=1, dtype="bfloat16")
    return Job(model=model, layout=Layout(dp_shard=32, tp=2, zero=1), recipe=recipe)


def case(**changed: float) -> Cases:
    plain = cases.of_jobs([example()])
    return replace(plain, **{name: cases.column(value) for name, value in changed.items()})


@pytest.mark.parametrize("offloaded", [(0.0, 0.0, 0.0), (0.0, 1.0, 0.0), (1.0, 1.0, 1.0)])
def test_intervals_of_several_steps_are_those_of_each(offloaded: tuple[float, ...]) -> None:
    h100 = machine_model.build(machines.load("h100"), "megatron", "bfloat16")
    sequences, layers = np.array([1.0, 2.0, 4.0]), np.array([8.0, 16.0, 32.0])
    together = replace(case(), micro_batch_size=sequences, layers=layers, offload=np.array(offloaded))
    each = [interval_of(h100, together.take(np.array([row]))) for row in range(3)]
    assert intervals_of(h100, together) == each
    assert [interval.calibrated for interval in each] == [value == 0 for value in offloaded]


def test_which_steps_are_calibrated() -> None:
    h100 = machine_model.build(machines.load("h100"), "megatron", "bfloat16")
    assert interval_of(h100, case()).calibrated
    assert not interval_of(h100, case(offload=1.0)).calibrated
    assert not interval_of(h100, case(space_layers=4.0)).calibrated
    for name, software, named in (
        ("mi355x", "megatron", "MI355X"),
        ("trn2", "fsdp", "Megatron"),
        ("trn2", "megatron", "6 trainings"),
        ("mi300x", "megatron", "dense decoders"),
        ("tpu-v5p", "megatron", "TPU v5p"),
    ):
        model = machine_model.build(machines.load(name), software, "bfloat16")
        assert named in interval_of(model, case()).uncalibrated_because


def test_constants_of_another_device_are_named_with_it() -> None:
    """H100 has constants of FSDP that were fitted on H200."""
    h100 = machine_model.build(machines.load("h100"), "fsdp", "bfloat16")
    reason = interval_of(h100, case(experts=8.0)).uncalibrated_because
    assert [name for name in ("H100", "hopper-fsdp", "h200", "mixtures of experts") if name not in reason] == []


def test_a_machine_has_the_constants_of_its_device_whatever_its_name() -> None:
    h100 = machines.load("h100")
    for name in ("our-h100", "", "b200"):
        renamed = machine_model.build(structs.replace(h100, name=name), "megatron", "bfloat16")
        assert renamed.tuned.name == machine_model.build(h100, "megatron", "bfloat16").tuned.name
        assert interval_of(renamed, case()) == interval_of(machine_model.build(h100, "megatron", "bfloat16"), case())
    other = structs.replace(h100, device=structs.replace(h100.device, name="ACME X1", aliases=()))
    assert not machine_model.build(other, "megatron", "bfloat16").tuned.rows


@pytest.mark.parametrize(("factor", "calibrated"), [(0.97, True), (1.03, True), (0.5, False), (2.0, False)])
def test_changed_rates_of_a_device_are_not_calibrated(factor: float, calibrated: bool) -> None:
    h100 = machines.load("h100")
    claim, peak = h100.device.bandwidth, h100.device.peak["bfloat16"]
    for device in (
        structs.replace(h100.device, bandwidth=structs.replace(claim, value=factor * claim.value)),
        structs.replace(h100.device, peak={"bfloat16": structs.replace(peak, value=factor * peak.value)}),
    ):
        model = machine_model.build(structs.replace(h100, device=device), "megatron", "bfloat16")
        assert interval_of(model, case()).calibrated == calibrated


def test_a_plan_states_whether_its_interval_is_calibrated() -> None:
    for name, calibrated in (("h100", True), ("mi355x", False)):
        plan = cost_job(example(), machines.load(name), FRAMEWORKS["megatron"]).plan
        assert plan.calibrated == calibrated == (not plan.uncalibrated_because)
        assert plan.low < plan.ledger.wall_ns < plan.high


def test_every_set_states_the_range_of_its_rows() -> None:
    for constants in constant_sets.known():
        assert constants.rows == sum(fitted.rows for fitted in constants.ranges.values())
        for fitted in constants.ranges.values():
            assert set(fitted.least) == set(fitted.most) == set(FEATURES)
            assert all(0 < fitted.least[name] <= fitted.most[name] for name in FEATURES)


@given(factor=st.floats(0.01, 100))
def test_doublings_count_what_is_outside_of_the_range(factor: float) -> None:
    inside = case()
    fitted = range_of(inside, ["a"], ["h100"], ["fsdp"])
    assert fitted.outside(inside) == {}
    changed = replace(inside, width=inside.width * factor)
    assert np.isclose(sum(fitted.outside(changed).values()), abs(np.log2(factor)))
    assert set(features(inside)) == set(FEATURES)
