"""The charts' data: those of the run and the trace, as columns of equal length."""

import msgspec
import pytest

from tests.stored import JOB, LEDGER
from trainyard.job import Checkpoint
from trainyard.record import Incident, Run, Sample
from trainyard.report.view import build_charts
from trainyard.report.view.build_charts import bandwidth_chart, goodput_parts, roofline_chart, run_series
from trainyard.trace.align.bandwidth import Bandwidth
from trainyard.trace.flops.roofline import OpRow, Roofline


def sample(step, rank, wall_ns, **fields):
    return Sample(step=step, rank=rank, repeat=0, wall_ns=wall_ns, tokens=8, memory_bytes=1, **fields)


def run(samples, **fields):
    job = msgspec.structs.replace(JOB, checkpoint=Checkpoint(interval=2))
    return Run(
        id="3f9c", job=job, started="2026-01-01T00:00:00.000+00:00", state="complete", samples=samples,
        ledgers=(LEDGER,), **fields,
    )  # fmt: skip


def test_a_series_has_the_last_attempt_of_each_step_on_its_slowest_rank():
    samples = (
        sample(0, 0, 900, warmup=True, loss=5.0), sample(0, 1, 950, warmup=True),
        sample(1, 0, 100, loss=4.0), sample(1, 1, 120),
        sample(2, 0, 500, loss=9.0), sample(2, 1, 500),
        sample(2, 0, 110, loss=3.0, attempt=1), sample(2, 1, 105, attempt=1),
        sample(3, 0, 300, profiled=True, loss=float("nan"), attempt=1), sample(3, 1, 310, profiled=True, attempt=1),
    )  # fmt: skip
    series = run_series(run(samples))
    assert series.steps == (1, 2, 3, 4)
    assert series.wall_ns == (950, 120, 110, 310)
    assert series.losses == (5.0, 4.0, 3.0, None)
    assert series.excluded == ("warm-up", "", "", "profiled")
    assert [(event.step, event.kind) for event in series.events] == [(2, "checkpoint"), (4, "checkpoint")]
    assert run_series(run(samples[:2])) is None


def test_faults_and_resumes_are_at_the_steps_they_concern():
    incidents = (
        # Step 118 (the 119th) had completed: the 120th did not. Training resumed after 100 steps, with the 101st.
        Incident(kind="worker_death", time="", attempt=0, summary="a\nb", step=118, resumed_step=100, restart_s=2.0),
        Incident(kind="loss_spike", time="", attempt=1, summary="", step=141, action="skip"),
    )
    series = run_series(run((sample(0, 0, 1), sample(1, 0, 1)), incidents=incidents))
    events = [(event.step, event.kind, event.text) for event in series.events if event.kind != "checkpoint"]
    assert events == [(120, "fault", "a"), (101, "resume", "after 2.0 s"), (142, "fault", "")]


def test_long_series_are_thinned_and_say_so(monkeypatch):
    monkeypatch.setattr(build_charts, "_MOST_STEPS", 10)
    series = run_series(run(tuple(sample(step, 0, step + 1) for step in range(95))))
    assert series.stride == 10
    assert series.steps == tuple(range(1, 96, 10))
    assert series.wall_ns == series.steps


OP = OpRow(
    op="aten::mm", shape="", account="compute/matmul", phase="forward", dtype="float32", count=1.0, ns=10, busy_ns=12,
    flops=200, bytes=100, at_most=False, flops_rate=200 / 12e-9, bytes_rate=100 / 12e-9, intensity=2.0, bound="compute",
    reachable_ns=8, loss_ns=2,
)  # fmt: skip


def test_the_roofline_shows_ops_whose_rate_and_intensity_are_known():
    rows = (
        OP,
        OP._replace(op="packed", at_most=True),
        OP._replace(op="copy", flops=0, flops_rate=None, intensity=None),
    )
    chart = roofline_chart(
        Roofline(rows=rows, device="V100", known_ns=10, compute_ns=30, notes=()), "Tesla V100-SXM2-32GB"
    )
    (point,) = chart.points
    assert (point.op, point.ns, point.intensity, point.flops_rate) == ("aten::mm", 12, 2.0, 200 / 12e-9)
    assert (chart.covered_ns, chart.compute_ns) == (12, 36)
    assert [roof.dtype for roof in chart.roofs] == ["float32"]
    assert chart.bandwidth == pytest.approx(900e9)
    unknown = roofline_chart(Roofline(rows=rows, device="?", known_ns=10, compute_ns=30, notes=()), "no such device")
    assert (unknown.roofs, unknown.bandwidth) == ((), None)
    assert roofline_chart(Roofline(rows=rows[1:], device="?", known_ns=0, compute_ns=20, notes=()), "") is None


def test_bandwidths_without_members_are_left_out_and_links_listed_once():
    row = Bandwidth(
        collective="all_reduce", group="world", members=8, size=1 << 20, count=3, time_ns=100, algbw=10, busbw=17,
        slowest=15, fastest=19, from_last=True, link="NVLink", link_rate=300,
    )  # fmt: skip
    unknown = row._replace(members=0, busbw=None, slowest=None, fastest=None)
    chart = bandwidth_chart([row, unknown, row._replace(size=1 << 21)])
    assert [(point.size, point.busbw) for point in chart.points] == [(1 << 20, 17), (1 << 21, 17)]
    assert [(link.name, link.rate) for link in chart.links] == [("NVLink", 300)]
    assert bandwidth_chart([unknown]) is None


def test_goodput_has_the_parts_that_took_time_in_order():
    parts = goodput_parts({"restart": 2.0, "good": 7.5, "stall": 0.0})
    assert [(part.cause, part.seconds) for part in parts] == [("good", 7.5), ("restart", 2.0)]
    assert goodput_parts({"good": 7.5}) == ()
