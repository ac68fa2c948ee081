"""Builds the charts of a page from a stored run and its measured trace."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from trainyard import machine, plugins, words
from trainyard.job import SCRIPT
from trainyard.ledger import Account
from trainyard.record import Run, Sample
from trainyard.report.view.charts import (
    BandwidthChart,
    BandwidthPoint,
    Charts,
    GoodputPart,
    LinkRate,
    Roof,
    RooflineChart,
    RooflinePoint,
    RunSeries,
    SeriesEvent,
)
from trainyard.report.view.expert_load import expert_load
from trainyard.report.view.memory_chart import RankMemory, memory_chart
from trainyard.report.view.recorded_pipeline import recorded_pipeline
from trainyard.trace.align.bandwidth import Bandwidth
from trainyard.trace.flops.roofline import Roofline
from trainyard.trace.measured_trace import MeasuredTrace

_MOST_STEPS = 4000
"""Steps of a series; of longer runs, every k-th step is shown."""
_MOST_POINTS = 300
"""Points of the roofline, those with the most time."""


def build_charts(
    run: Run | None, measured: MeasuredTrace | None, roofline: Roofline | None, memory: RankMemory | None = None
) -> Charts:
    """The charts for which there are data. `roofline`: of the ranks that the mean of `measured` covers; `memory`: of
    the rank with the highest peak."""
    return Charts(
        series=run_series(run) if run else None,
        roofline=roofline_chart(roofline, measured.ranks[0].events.device) if roofline and measured else None,
        bandwidth=bandwidth_chart(measured.bandwidths) if measured else None,
        pipeline=recorded_pipeline(measured) if measured else None,
        goodput=goodput_parts(run.goodput) if run else (),
        memory=memory_chart(memory) if memory else None,
        experts=expert_load(run) if run else None,
    )


def run_series(run: Run) -> RunSeries | None:
    """Step times and losses of a run, with its faults, resumes and checkpoints; None for fewer than two steps.

    Of a step that was repeated after a restart, the last attempt is shown.
    """
    by_step: dict[int, list[Sample]] = {}
    for sample in run.kept():
        by_step.setdefault(sample.step, []).append(sample)
    if len(by_step) < 2:
        return None
    stride = -(-len(by_step) // _MOST_STEPS)
    shown = sorted(by_step)[::stride]
    return RunSeries(
        steps=tuple(step + 1 for step in shown),
        wall_ns=tuple(max(sample.wall_ns for sample in by_step[step]) for step in shown),
        losses=tuple(_loss(by_step[step]) for step in shown),
        excluded=tuple(_exclusion(by_step[step]) for step in shown),
        events=(*_incident_events(run), *_checkpoint_events(run, max(by_step) + 1)),
        loss_unit="nats a token" if run.job.workload != SCRIPT and plugins.unit_of(run.job) == "tokens" else "",
        stride=stride,
    )


def _loss(samples: Sequence[Sample]) -> float | None:
    losses = [sample.loss for sample in samples if sample.rank == 0 and sample.loss is not None]
    return losses[0] if losses and isfinite(losses[0]) else None


def _exclusion(samples: Sequence[Sample]) -> str:
    """Why a step does not count in figures, or empty."""
    if any(sample.skipped for sample in samples):
        return "skipped"
    if any(sample.warmup for sample in samples):
        return "warm-up"
    return "profiled" if any(sample.profiled for sample in samples) else ""


def _incident_events(run: Run) -> list[SeriesEvent]:
    """The faults of a run, each at the first step that did not complete, and the steps from which it resumed."""
    events: list[SeriesEvent] = []
    for incident in run.incidents:
        label = words.FAULTS[incident.kind].label
        text = incident.summary.splitlines()[0] if incident.summary else ""
        # A faulty step is the incident's own step; otherwise `step` is the last that had completed.
        events.append(
            SeriesEvent(step=incident.step + (1 if incident.action else 2), kind="fault", label=label, text=text)
        )
        if incident.resumed_step >= 0:
            text = f"after {incident.restart_s:.1f} s"
            events.append(SeriesEvent(step=incident.resumed_step + 1, kind="resume", label="resumed", text=text))
    return events


def _checkpoint_events(run: Run, last_step: int) -> list[SeriesEvent]:
    """The steps after which the job saves a checkpoint, by its configuration."""
    interval = run.job.checkpoint.interval
    steps = range(interval, last_step + 1, interval) if interval else ()
    return [SeriesEvent(step=step, kind="checkpoint", label="checkpoint") for step in steps[-_MOST_STEPS:]]


def roofline_chart(roofline: Roofline, device_name: str) -> RooflineChart | None:
    """The ops with a known intensity and rate, those with the most time; None if there are none. `device_name`: as in
    the trace."""
    rows = [row for row in roofline.rows if row.intensity and row.flops_rate and row.busy_ns and not row.at_most]
    rows = sorted(rows, key=lambda row: -row.busy_ns)[:_MOST_POINTS]
    if not rows:
        return None
    device = machine.find_device(device_name)
    formats = {row.dtype for row in rows}
    peaks = device.peak if device else {}
    return RooflineChart(
        device=roofline.device,
        points=tuple(
            RooflinePoint(
                op=row.op,
                shape=row.shape,
                account=row.account,
                label=Account.parse(row.account).label,
                colour=Account.parse(row.account).colour,
                phase=row.phase,
                dtype=row.dtype,
                count=row.count,
                ns=row.busy_ns,
                intensity=row.intensity or 0.0,
                flops_rate=row.flops_rate or 0.0,
                bound=row.bound,
                reachable_ns=row.reachable_ns,
            )
            for row in rows
        ),
        roofs=tuple(Roof(dtype=dtype, flops_rate=peaks[dtype].value) for dtype in peaks if dtype in formats),
        bandwidth=device.bandwidth.value if device else None,
        covered_ns=sum(row.busy_ns for row in rows),
        compute_ns=sum(row.busy_ns for row in roofline.rows),
    )


def bandwidth_chart(rows: Sequence[Bandwidth]) -> BandwidthChart | None:
    """The collectives with a known bus bandwidth, and the links between their members; None if there are none."""
    points = tuple(
        BandwidthPoint(
            collective=row.collective,
            label=words.COLLECTIVES[row.collective].label,
            colour=words.COLLECTIVES[row.collective].colour,
            group=row.group,
            members=row.members,
            size=row.size,
            count=row.count,
            busbw=row.busbw,
            slowest=row.slowest,
            fastest=row.fastest,
            is_exact=row.from_last,
            verdict=row.verdict,
        )
        for row in rows
        if row.busbw and row.slowest and row.fastest
    )
    links = {row.link: row.link_rate for row in rows if row.link_rate}
    return (
        BandwidthChart(points=points, links=tuple(LinkRate(name=name, rate=rate) for name, rate in links.items()))
        if points
        else None
    )


def goodput_parts(seconds_by_cause: dict[str, float]) -> tuple[GoodputPart, ...]:
    """The uses of a job's time, in the order of words.TIMES; none if only steps and start-up are known."""
    parts = tuple(
        GoodputPart(
            cause=cause, label=word.label, means=word.means, colour=word.colour, seconds=seconds_by_cause[cause]
        )
        for cause, word in words.TIMES.items()
        if seconds_by_cause.get(cause, 0) > 0
    )
    return parts if len(parts) > 1 else ()
