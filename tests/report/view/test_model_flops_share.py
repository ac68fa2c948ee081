"""MFU in reports: with numerator and denominator, or with the reason for its absence."""

import json
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.machine import Claim
from trainyard.model import Model
from trainyard.printable import encode_json
from trainyard.recipe import Recipe
from trainyard.record import DeviceSeen, Provenance, Run, Sample
from trainyard.report.render import html, markdown
from trainyard.report.render.terminal import print_view
from trainyard.report.view.build_analysis import analyse_run
from trainyard.report.view.build_view import view_of
from trainyard.report.view.run_result import result_of_run
from trainyard.run.local.rank_facts import RankFacts
from trainyard.run.record import run_claims
from trainyard.vendors.cpu_vendor import Cpu
from trainyard.vendors.nvidia import Nvidia

MODEL = Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8)
A100 = DeviceSeen(index=0, name="NVIDIA A100-SXM4-80GB", vendor="nvidia")
UNKNOWN = DeviceSeen(index=0, name="Some Processor", vendor="cpu")


def a_run(device, dtype, matmul=247e12):
    """A run of eight ranks with one step of 0.123 s and 126 TFLOP of model FLOPs."""
    job = Job(model=MODEL, layout=Layout(dp_shard=8), recipe=Recipe(seq_len=8, tokens_per_step=64, dtype=dtype))
    rate = Claim(value=matmul, unit="FLOP/s", source="probe: product", measured=True)
    facts = RankFacts(
        rank=0, local_rank=0, world=8, vendor=device.vendor, device=device.name, backend="gloo", threads=1, text="",
        digests={}, seeds={}, parameters=1, model_flops=int(126.3e12), matmul_rate=rate, torch_build={},
    )  # fmt: skip
    samples = tuple(
        Sample(step=0, rank=rank, repeat=0, wall_ns=123_000_000, tokens=8, loss=1.0, memory_bytes=1)
        for rank in range(8)
    )
    run = Run(id="x", job=job, started="2026-01-01", samples=samples, provenance=Provenance(devices=(device,) * 8))
    vendors = {"nvidia": Nvidia(), "cpu": Cpu()}
    return msgspec.structs.replace(run, claims=run_claims.derive_claims(run, [facts], vendors))


def rendered(run):
    """The run as (terminal, Markdown, HTML)."""
    view = view_of(analyse_run(run))
    printed = StringIO()
    print_view(view, Console(file=printed, width=200))
    page = html.page(view).replace("\\u003c", "<")
    return printed.getvalue(), markdown.text(view).replace("\\", ""), page


def test_mfu_shows_numerator_and_denominator():
    run = a_run(A100, "bfloat16")
    mfu = 100 * 126.3e12 / (0.123 * 8 * 312e12)
    worked = "126.30 TFLOP a step / 123.0 ms / (8 × 312.0 TFLOP/s, the peak in bfloat16)"
    terminal, text, page = rendered(run)
    assert f"MFU {mfu:.1f} % = {worked}" in terminal
    assert f"MFU {mfu:.1f} % = {worked}" in text
    assert worked in page
    assert "no MFU" not in terminal + text + page
    share = json.loads(encode_json(result_of_run(run, Path("here"))))["summary"]["mfu"]
    assert share["value"] == pytest.approx(mfu / 100)
    assert share["value"] == share["flops"] / (share["step_ns"] / 1e9) / (8 * 312e12)
    assert (share["ranks"], share["rate"]) == (8, 312e12)


@pytest.mark.parametrize(("device", "dtype"), [(UNKNOWN, "float32"), (A100, "float8")])
def test_missing_peak_shows_reason_and_share_of_matmul_rate(device, dtype):
    run = a_run(device, dtype)
    share = 100 * 126.3e12 / (0.123 * 8 * 247e12)
    line = (
        f"of matmul rate {share:.1f} % = 126.30 TFLOP a step / 123.0 ms / (8 × 247.0 TFLOP/s, the rate that matrix "
        f"products reached here) (no MFU: the peak of {device.name} in {dtype} is unknown)"
    )
    terminal, text, page = rendered(run)
    assert line in " ".join(terminal.split())
    assert line[:150] in text
    assert f"no MFU: the peak of {device.name} in {dtype} is unknown" in page
    summary = json.loads(encode_json(result_of_run(run, Path("here"))))["summary"]
    assert "mfu" not in summary
    assert summary["no_mfu"] == f"the peak of {device.name} in {dtype} is unknown"


def test_mfu_denominator_is_the_peak_of_the_matmul_dtype():
    rates = {dtype: a_run(A100, dtype).claims["peak"].value for dtype in ("float32", "tf32", "float16", "bfloat16")}
    assert rates == {"float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12}
    h100 = DeviceSeen(index=0, name="NVIDIA H100 80GB HBM3", vendor="nvidia")
    assert a_run(h100, "float8").claims["peak"].value == 1979e12


def test_share_of_matmul_rate_above_one_is_unknown():
    """The job reached 128 TFLOP/s per rank, the probe on a busy machine only 100."""
    run = a_run(UNKNOWN, "float32", matmul=100e12)
    terminal, text, page = rendered(run)
    assert "cannot tell of matmul rate (the probe reached less than the job)" in " ".join(terminal.split())
    assert "the probe reached less than the job" in text
    assert "the probe reached less than the job" in page
    summary = json.loads(encode_json(result_of_run(run, Path("here"))))["summary"]
    assert "matmul_share" not in summary
    assert summary["no_matmul_share"] == "the probe reached less than the job"


def a_profiled_run(timed_ms, profiled_ms):
    job = Job(model=MODEL, layout=Layout(), recipe=Recipe(seq_len=8, tokens_per_step=8))
    samples = tuple(
        Sample(
            step=step, rank=0, repeat=step, wall_ns=wall * 1_000_000, tokens=8, loss=1.0, memory_bytes=1,
            profiled=bool(step),
        )
        for step, wall in enumerate((timed_ms, profiled_ms))
    )  # fmt: skip
    took = profiled_ms * 1_000_000
    entry = Entry(account=Account("compute", "matmul"), ns=took)
    ledger = Ledger(wall_ns=took, entries=(entry,), scope=Scope(steps=("1",), ranks=(0,)))
    run = Run(id="x", job=job, started="2026-01-01", state="complete", samples=samples, ledgers=(ledger,))
    return msgspec.structs.replace(run, claims=run_claims.derive_claims(run, [], {}))


def test_negative_profiler_cost_is_unknown():
    faster = a_profiled_run(timed_ms=1947, profiled_ms=997)
    assert "profiler_cost" not in faster.claims
    terminal = " ".join(rendered(faster)[0].split())
    assert "cannot tell profiler's cost (the median profiled step was 950.0 ms faster)" in terminal
    assert a_profiled_run(timed_ms=100, profiled_ms=120).claims["profiler_cost"].value == 20_000_000


@pytest.mark.parametrize(("profiled", "apart"), [(74, True), (76, False), (124, False), (126, True)])
def test_warns_if_profiled_steps_differ_from_timed_ones(profiled, apart):
    warned = f"The ledger is of profiled steps, which took {profiled}.0 ms; the timed ones took 100.0 ms."
    assert view_of(analyse_run(a_profiled_run(100, profiled))).warnings == ((warned,) if apart else ())
