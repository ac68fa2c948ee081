"""No predicted step has an MFU above 100 %, on any machine, in any dtype."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from trainyard import machine, words
from trainyard.errors import BadJob, UnknownName
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.search.layout_cost import LayoutCost, cost_job
from trainyard.recipe import Recipe

PEAKS = [(name, dtype) for name in machine.known() for dtype in machine.load(name).device.peak if dtype in words.DTYPES]
"""(machine, dtype) of each known peak."""


def cost(name: str, dtype: str, model: Model, tp: int, framework: str = "megatron") -> LayoutCost:
    recipe = Recipe(tokens_per_step=1 << 18, seq_len=1 << 12, micro_batch_size=4, dtype=dtype)
    job = Job(name="m", model=model, layout=Layout(tp=tp), recipe=recipe)
    return cost_job(job, machine.load(name), FRAMEWORKS[framework])


def decoder(width: int, ffn: int, layers: int = 8, **keys: Any) -> Model:
    heads = max(1, width // 128)
    return Model(
        name="m", layers=layers, hidden_size=width, ffn_hidden_size=ffn, heads=heads, kv_heads=heads, head_dim=128,
        vocab=32_768, **keys,
    )  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    st.sampled_from(PEAKS), st.sampled_from([1024, 4096, 16_384, 65_536]), st.integers(1, 8), st.sampled_from([1, 8]),
    st.sampled_from(sorted(FRAMEWORKS)), st.sampled_from([0, 8, 64]),
)  # fmt: skip
def test_mfu_is_at_most_100_percent(
    peak: tuple[str, str], width: int, ratio: int, tp: int, framework: str, experts: int
) -> None:
    name, dtype = peak
    moe = {"experts": experts, "top_k": 4, "moe_ffn_hidden_size": width} if experts else {}
    try:
        planned = cost(name, dtype, decoder(width, width * ratio, **moe), tp, framework)
    except (BadJob, UnknownName):
        assume(False)
    assert 0 < planned.bill.mfu <= 1
    assert planned.bill.peak_flops_per_s == pytest.approx(
        tp * machine.load(name).device.peak[planned.bill.peak_dtype].value / machine.load(name).device.ranks
    )


@pytest.mark.parametrize(("name", "dtype"), [peak for peak in PEAKS if words.DTYPES[peak[1]] < 2])
def test_mfu_below_16_bits_refers_to_that_peak(name: str, dtype: str) -> None:
    """Products of wide layers, which are above 100 % of the bfloat16 peak on some of these machines."""
    try:
        planned = cost(name, dtype, decoder(65_536, 4 * 65_536, layers=2), 1)
    except (BadJob, UnknownName):
        pytest.skip("no bfloat16 peak")
    peaks = machine.load(name).device.peak
    assert peaks[planned.bill.peak_dtype].value == max(peaks[dtype].value, peaks["bfloat16"].value)
    assert planned.bill.mfu <= 1
