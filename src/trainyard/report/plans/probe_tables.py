"""Tables of a probe: measured times, the machine's constants, and a fit to runs."""

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
    """The median of several repeats, with its quartiles."""
    products = sorted((probe for probe in some if probe.what == "matmul"), key=lambda probe: probe.rate)
    shown = [products[0], products[len(products) // 2], products[-1]]
    return Table(
        title="Measured",
        notes=(
            f"Median of several repeats on rank 0 while all {ranks} ranks work. From, to: quartiles. Matrix products: "
            f"the slowest, the median and the fastest of {len(products)}.",
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
    """The constants measured on the machine, next to the defaults."""
    assumed = Constants()._asdict()
    spread = f"Measured over predicted: {machine.spread[0]:.2f} to {machine.spread[1]:.2f}." if machine.spread else ""
    return Table(
        title="Constants",
        notes=tuple(note for note in (spread,) if note),
        columns=(Column(head=""), Column(head="here"), Column(head="default")),
        rows=tuple((name, f"{claim.value:.4g}", f"{assumed[name]:.4g}") for name, claim in machine.tuned.items()),
    )


def fit(runs: Sequence[MeasuredRun], before: Machine, assumed: Constants, after: Machine) -> Table:
    """Each run's prediction before and after the fit."""
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
        notes=("Steps without the profiler. Fitted runs are not a test: predict a run that was not in the fit.",),
        columns=(
            Column(head=""), Column(head="layout", prose=True), Column(head="measured, ms", digits=1),
            Column(head="before, ms", digits=1), Column(head="error"), Column(head="after, ms", digits=1),
            Column(head="error"),
        ),
        rows=tuple(rows),
    )  # fmt: skip
