"""MFU as it is shown: with its numerator and denominator, or with the reason why there is none."""

import json
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from trainyard.cli.runs import document
from trainyard.job import Job, Layout, Model, Recipe
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.machine import Claim
from trainyard.record import DeviceSeen, Provenance, Run, Sample
from trainyard.report.render import html, markdown
from trainyard.report.render.terminal import print_view
from trainyard.report.view.build_analysis import analyse_run
from trainyard.report.view.build_view import view_of
from trainyard.run.local.rank_facts import RankFacts
from trainyard.run.record import run_claims
from trainyard.vendors.cpu_vendor import Cpu
from trainyard.vendors.nvidia import Nvidia

MODEL = Model(layers=1, width=8, ffn=8, heads=1, kv_heads=1, head_dim=8)
A100 = DeviceSeen(index=0, name="NVIDIA A100-SXM4-80GB", vendor="nvidia")
UNKNOWN = DeviceSeen(index=0, name="Some Processor", vendor="cpu")


def a_run(device, dtype, matmul=247e12):
    """Eight ranks, one step of 0.123 s, 126 TFLOP of model in it."""
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


def shown(run):
    """By terminal, Markdown and page."""
    view = view_of(analyse_run(run))
    printed = StringIO()
    print_view(view, Console(file=printed, width=200))
    page = html.page(view).replace("\\u003c", "<")
    return printed.getvalue(), markdown.text(view).replace("\\", ""), page


def test_mfu_is_shown_with_numerator_and_denominator():
    run = a_run(A100, "bfloat16")
    mfu = 100 * 126.3e12 / (0.123 * 8 * 312e12)
    worked = "126.30 TFLOP a step / 123.0 ms / (8 × 312.0 TFLOP/s, the peak in bfloat16)"
    terminal, text, page = shown(run)
    assert f"MFU {mfu:.1f} % = {worked}" in terminal
    assert f"MFU {mfu:.1f} % = {worked}" in text
    assert worked in page
    assert "no MFU" not in terminal + text + page
    said = json.loads(msgspec.json.encode(document(run, Path("here"))))["summary"]["mfu"]
    assert said["value"] == pytest.approx(mfu / 100)
    assert said["value"] == said["flops"] / (said["step_ns"] / 1e9) / (said["ranks"] * said["rate"])
    assert (said["ranks"], said["rate"]) == (8, 312e12)


@pytest.mark.parametrize(("device", "dtype"), [(UNKNOWN, "float32"), (A100, "float8")])
def test_without_a_peak_there_is_no_mfu_but_a_reason_and_the_share_of_the_matmul_rate(device, dtype):
    run = a_run(device, dtype)
    share = 100 * 126.3e12 / (0.123 * 8 * 247e12)
    line = (
        f"of matmul rate {share:.1f} % = 126.30 TFLOP a step / 123.0 ms / (8 × 247.0 TFLOP/s, the rate that matrix "
        f"products reached here) (no MFU: no peak in {dtype} is known of {device.name})"
    )
    terminal, text, page = shown(run)
    assert line in " ".join(terminal.split())
    assert line[:150] in text
    assert f"no MFU: no peak in {dtype} is known of {device.name}" in page
    said = json.loads(msgspec.json.encode(document(run, Path("here"))))["summary"]
    assert "mfu" not in said
    assert said["no_mfu"] == f"no peak in {dtype} is known of {device.name}"


def test_the_denominator_is_of_the_format_that_is_multiplied_in():
    rates = {dtype: a_run(A100, dtype).claims["peak"].value for dtype in ("float32", "tf32", "float16", "bfloat16")}
    assert rates == {"float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12}
    h100 = DeviceSeen(index=0, name="NVIDIA H100 80GB HBM3", vendor="nvidia")
    assert a_run(h100, "float8").claims["peak"].value == 1979e12


def test_a_share_above_one_cannot_be_told():
    """The job did 128 TFLOP/s a rank, a probe on a busy machine 100."""
    run = a_run(UNKNOWN, "float32", matmul=100e12)
    terminal, text, page = shown(run)
    assert "cannot tell of matmul rate (the probe reached less than the job)" in " ".join(terminal.split())
    assert "the probe reached less than the job" in text
    assert "the probe reached less than the job" in page
    said = json.loads(msgspec.json.encode(document(run, Path("here"))))["summary"]
    assert "matmul_share" not in said
    assert said["no_matmul_share"] == "the probe reached less than the job"


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


def test_a_profilers_cost_that_cannot_be_told_is_not_nothing():
    faster = a_profiled_run(timed_ms=1947, profiled_ms=997)
    assert "profiler_cost" not in faster.claims
    terminal = " ".join(shown(faster)[0].split())
    assert "cannot tell profiler's cost (profiled steps were 950.0 ms faster)" in terminal
    assert a_profiled_run(timed_ms=100, profiled_ms=120).claims["profiler_cost"].value == 20_000_000


@pytest.mark.parametrize(("profiled", "apart"), [(74, True), (76, False), (124, False), (126, True)])
def test_profiled_steps_unlike_the_timed_ones_are_told_apart(profiled, apart):
    warned = f"The ledger is of profiled steps, which took {profiled}.0 ms; the timed ones took 100.0 ms."
    assert view_of(analyse_run(a_profiled_run(100, profiled))).warnings == ((warned,) if apart else ())
