"""What a probe measured, and what became of constants, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.machine import Machine
from trainyard.predict.calibrate import fit_constants
from trainyard.predict.calibrate.fit_constants import MeasuredRun
from trainyard.predict.calibrate.probed_machine import ProbedTime
from trainyard.predict.inputs.constants import Constants
from trainyard.report.view.view import Cell, Column, Table
from trainyard.units import show_size, show_time


def timed(some: Sequence[ProbedTime], ranks: int) -> Table:
    """The median of several tries, with its quartiles."""
    products = sorted((probe for probe in some if probe.what == "matmul"), key=lambda probe: probe.rate)
    shown = [products[0], products[len(products) // 2], products[-1]]
    return Table(
        title="Measured",
        notes=(
            f"The median of several tries, on rank 0 of {ranks} at work at once. From, to: half of the tries lay "
            f"between them. Of {len(products)} products the slowest, the median and the fastest.",
        ),
        columns=(
            Column(head=""), Column(head="size"), Column(head="a call"), Column(head="from"), Column(head="to"),
            Column(head="rate"),
        ),
        rows=tuple(_row(probe) for probe in (*(probe for probe in some if probe.what != "matmul"), *shown)),
    )  # fmt: skip


def _row(probe: ProbedTime) -> tuple[Cell, ...]:
    if probe.what == "matmul":
        size, rate = " x ".join(map(str, probe.size)), f"{probe.rate / 1e9:,.1f} GFLOP/s"
    elif probe.what == "attention":
        way = "backward" if probe.size[2] else "forward"
        size, rate = f"{probe.size[0]:,} tokens, {probe.size[1]} channels, {way}", f"{probe.rate / 1e9:,.1f} GFLOP/s"
    else:
        size, rate = show_size(probe.size[0]), f"{probe.rate / 1e9:,.2f} GB/s"
    return (probe.what, size, *(show_time(round(value * 1e9)) for value in probe[2:]), rate)


def constants(machine: Machine) -> Table:
    """Those that are the machine's own, beside what is assumed elsewhere."""
    assumed = Constants()._asdict()
    spread = f"Measured over predicted: {machine.spread[0]:.2f} to {machine.spread[1]:.2f}." if machine.spread else ""
    return Table(
        title="Constants",
        notes=tuple(note for note in (spread,) if note),
        columns=(Column(head=""), Column(head="here"), Column(head="assumed elsewhere")),
        rows=tuple((name, f"{claim.value:.4g}", f"{assumed[name]:.4g}") for name, claim in machine.tuned.items()),
    )


def fit(runs: Sequence[MeasuredRun], before: Machine, assumed: Constants, after: Machine) -> Table:
    """Each run as it was predicted before and is now."""
    from trainyard.predict.inputs import constant_sets

    now = constant_sets.choose(after, "fsdp").values()
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        old, new = (fit_constants.seconds(where, its, run.job) for where, its in ((before, assumed), (after, now)))
        rows.append((
            run.name, str(run.job.layout), run.seconds * 1e3, old * 1e3, f"{100 * (old / run.seconds - 1):+.1f} %",
            new * 1e3, f"{100 * (new / run.seconds - 1):+.1f} %",
        ))  # fmt: skip
    return Table(
        title="Runs",
        notes=("Steps without the profiler. What is fitted is not a test: predict a run that was not named.",),
        columns=(
            Column(head=""), Column(head="layout", prose=True), Column(head="measured, ms", digits=1),
            Column(head="before, ms", digits=1), Column(head="error"), Column(head="after, ms", digits=1),
            Column(head="error"),
        ),
        rows=tuple(rows),
    )  # fmt: skip
