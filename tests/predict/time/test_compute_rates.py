"""Rates of compute: sustained rates of a cluster, attention by length, adapters, and the host's time for experts."""

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
from trainyard.machine import Claim, Machine
from trainyard.model import Model
from trainyard.predict.inputs import cases, hardware
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import layer, shapes, step
from trainyard.recipe import Recipe

H100 = machine.load("h100")
PEAK = H100.device.peak["bfloat16"].value
FITTED = PEAK * Constants().matmul
"""Rate of large products of the machines that constants were fitted to."""
DECODER = replace(
    cases.of_jobs([
        Job(
            name="decoder", model=Model(layers=8, hidden_size=4096, ffn_hidden_size=14336, heads=32, kv_heads=8,
                                        head_dim=128, vocab=32000),
            layout=Layout(dp_shard=8, zero=3),
            recipe=Recipe(seq_len=4096, tokens_per_step=64 * 4096, micro_batch_size=1, dtype="bfloat16"),
        )
    ]),
    native=cases.column(0),
)  # fmt: skip


def sustained(rate: float) -> Machine:
    claim = Claim(value=rate, unit="FLOP/s", source="a matrix product")
    return changed(H100, device=changed(H100.device, sustained={"bfloat16": claim}))


def seconds(case: Cases, where: RankHardware, tuned: Constants | None = None) -> float:
    return float(step.step(case, where, tuned or Constants()).wall[0])


@given(st.floats(0.05, 1.0), st.floats(1.0, 5.0))
def test_higher_sustained_rate_is_never_slower(share: float, ratio: float) -> None:
    slow, fast = (
        hardware.of_machine(sustained(rate), "bfloat16") for rate in (share * PEAK, min(ratio * share, 1.0) * PEAK)
    )
    assert seconds(DECODER, fast) <= seconds(DECODER, slow) * (1 + 1e-9)


def test_sustained_rate_of_the_fitted_machines_changes_nothing() -> None:
    plain, measured = (hardware.of_machine(each, "bfloat16") for each in (H100, sustained(FITTED)))
    assert seconds(DECODER, measured) == pytest.approx(seconds(DECODER, plain), rel=1e-12)


def test_sustained_rate_slows_products_and_attention_alike() -> None:
    plain, halved = (hardware.of_machine(each, "bfloat16") for each in (H100, sustained(FITTED / 2)))
    tuned = Constants(kernel_s=1e-12)  # without the time to launch
    (forward, backward), (slow_forward, slow_backward) = (
        layer.layer(DECODER, where, tuned) for where in (plain, halved)
    )
    for fast, slow in ((forward, slow_forward), (backward, slow_backward)):
        assert float(slow.matmul[0] / fast.matmul[0]) == pytest.approx(2, rel=1e-6)
        assert float(slow.attention[0] / fast.attention[0]) == pytest.approx(2, rel=1e-6)
        assert float(slow.elementwise[0]) == float(fast.elementwise[0])


@given(st.integers(7, 20))
def test_attention_attains_more_in_longer_sequences(log_length: int) -> None:
    where = hardware.of_machine(H100, "bfloat16")
    tuned = Constants(kernel_s=1e-12)
    rates: list[float] = []
    for length in (2.0**log_length, 2.0 ** (log_length + 1)):
        forward, _ = layer.attention(replace(DECODER, seq_len=cases.column(length)), where, tuned)
        flops = 2 * length**2 * 32 * (128 + 128) / 2  # half of the scores
        rates.append(flops / float(np.ravel(forward)[0]) / PEAK)
    assert rates[0] < rates[1] < tuned.attention
    assert rates[0] == pytest.approx(tuned.attention / (1 + tuned.attention_length / 2.0**log_length), rel=1e-6)


def test_sustained_rate_of_a_low_format_is_that_of_its_products_only() -> None:
    claim = Claim(value=PEAK / 4, unit="FLOP/s", source="a matrix product")
    slow = changed(H100, device=changed(H100.device, sustained={"float8": claim}))
    case = replace(DECODER, low_precision=cases.column(1))
    plain, measured = (
        layer.layer(case, hardware.of_machine(each, "bfloat16", "float8"), Constants(kernel_s=1e-12))[0]
        for each in (H100, slow)
    )
    ratio = H100.device.peak["float8"].value * Constants().low_matmul / claim.value
    assert float(measured.matmul[0] / plain.matmul[0]) == pytest.approx(ratio, rel=1e-6)
    assert float(measured.attention[0]) == float(plain.attention[0])


def test_adapters_next_to_matrices_that_tp_divides_by_rows_read_divided_inputs() -> None:
    adapted = replace(DECODER, adapters=cases.column(16), mlp_adapters=cases.column(16))
    for tp in (1, 4):
        divided = replace(adapted, tp=cases.column(tp))
        inputs = [
            float(np.ravel(product.depth)[0])
            for product in (*shapes.attention_adapter_products(divided), *shapes.mlp_adapter_products(divided))
        ]
        assert inputs == [4096, 16, 4096 / tp, 16, 4096, 16, 14336 / tp, 16]


def test_layer_of_small_experts_waits_for_the_host() -> None:
    where = hardware.of_machine(H100, "bfloat16")
    sizes = {"width": 256, "ffn": 512, "heads": 4, "kv_heads": 4, "head_dim": 64, "seq_len": 256, "experts": 8,
             "active_experts": 2, "moe_ffn_hidden_size": 256}  # fmt: skip
    small = replace(DECODER, **{name: cases.column(size) for name, size in sizes.items()})
    tuned = Constants(host_experts_s=5e-3)
    for phase, host_s in zip(
        layer.layer(small, where, tuned), (tuned.host_forward_s, tuned.host_backward_s), strict=True
    ):
        assert float(phase.seconds[0]) == pytest.approx(host_s + tuned.host_experts_s)


@given(
    st.sampled_from([1, 2, 4, 8]), st.integers(0, 2), st.sampled_from([0, 16]), st.sampled_from([0, 16]),
    st.sampled_from([0, 1]),
)  # fmt: skip
def test_frozen_model_without_slowdown_is_slower_by_the_products_of_its_adapters_at_most(
    tp: int, checkpoint: int, attention_rank: int, mlp_rank: int, low_precision: int
) -> None:
    where = hardware.of_machine(H100, "bfloat16", "float8")
    columns = {"tp": tp, "dp_shard": 8 // tp, "activation_checkpoint": checkpoint, "low_precision": low_precision}
    whole = replace(DECODER, **{name: cases.column(value) for name, value in columns.items()})
    frozen = replace(whole, adapters=cases.column(attention_rank), mlp_adapters=cases.column(mlp_rank))
    products = shapes.attention_adapter_products(frozen) + shapes.mlp_adapter_products(frozen)
    tuned = Constants(adapted=1.0)
    forward_s, backward_s = layer.products(where, tuned, products, np.zeros(1), np.ones(1))
    passes = 1 + (checkpoint == 2)
    micro_batches = 64 / (8 / tp)
    adapters_s = 8 * micro_batches * float(np.ravel(passes * forward_s + backward_s)[0])
    assert seconds(frozen, where, tuned) <= (seconds(whole, where) + adapters_s) * (1 + 1e-9)


@pytest.mark.parametrize(("channels", "tflops"), [(21, (324, 370)), (56, (497, 648))])
def test_attention_attains_the_published_ratio_of_head_sizes(channels: float, tflops: tuple[float, float]) -> None:
    """FlashAttention-2 and -3 on H100, heads of 64 and 128 channels, 16,384 tokens without a mask (arXiv:2407.08608,
    figure 5)."""
    tuned = Constants()._replace(attention_channels=channels)
    small, large = (
        layer.attention_share(tuned, cases.column(16384), cases.column(channels), 1.0)[0] for channels in (64, 128)
    )
    assert small / large == pytest.approx(tflops[0] / tflops[1], rel=0.02)


@given(
    seq_len=st.integers(1, 1 << 20),
    channels=st.integers(1, 1024),
    computed=st.sampled_from([layer.CAUSAL_SHARE, 1.0]),
    attention=st.floats(0.01, 1.0),
)
def test_longer_sequences_and_larger_heads_never_lower_the_rate_of_attention(
    seq_len: int, channels: int, computed: float, attention: float
) -> None:
    tuned = Constants()._replace(attention=attention)

    def share(seq_len: int, channels: int) -> float:
        return float(layer.attention_share(tuned, cases.column(seq_len), cases.column(channels), computed)[0])

    assert share(seq_len, channels) <= share(2 * seq_len, channels) <= share(2 * seq_len, 2 * channels) <= 1
