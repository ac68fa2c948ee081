"""Tables of a probe: timed calls, the machine's constants, and a fit to runs."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.machine import Machine
from trainyard.predict.inputs.constants import Constants
from trainyard.report.plans.probe_results import FittedMachine, ProbedMachine, TimedCall, describe_interval
from trainyard.report.view.view import Cell, Column, Table
from trainyard.units import show_size

_COMPUTE = ("matmul", "attention")


def rates(probed: ProbedMachine) -> Table:
    """The fastest call of each operation: matrix products and attention first, then copies and collectives, each in
    descending order of rate."""
    fastest_calls = {call.operation: call for call in sorted(probed.calls, key=lambda call: call.rate)}
    rows = sorted(fastest_calls.values(), key=lambda call: (call.operation not in _COMPUTE, -call.rate))
    return Table(
        title="Best rate",
        notes=(f"Per rank, while all ranks work: {probed.ranks}. Sizes of collectives are those of the whole tensor.",),
        columns=(
            Column(title=""), Column(title="size"), Column(title="one call, µs", digits=1),
            Column(title="GFLOP/s", digits=1), Column(title="GB/s", digits=2),
        ),
        rows=tuple((*_call(call), *_rate(call)) for call in rows),
    )  # fmt: skip


def calls(probed: ProbedMachine) -> Table:
    """The table of every timed call, in the order of measurement, with the median and the quartiles of its time."""
    return Table(
        title="Timed call",
        notes=(f"Median of several tries on rank 0 while all ranks work: {probed.ranks}.",),
        columns=(
            Column(title=""), Column(title="size"), Column(title="one call, µs", digits=1),
            Column(title="lower quartile, µs", digits=1), Column(title="upper quartile, µs", digits=1),
            Column(title="GFLOP/s", digits=1), Column(title="GB/s", digits=2),
        ),
        rows=tuple((*_call(call), call.low_s * 1e6, call.high_s * 1e6, *_rate(call)) for call in probed.calls),
    )  # fmt: skip


def _call(call: TimedCall) -> tuple[Cell, ...]:
    """Cells of a timed call: operation, its size in words, median time in µs."""
    if call.operation == "matmul":
        size = " x ".join(map(str, call.size))
    elif call.operation == "attention":
        size = f"{call.size[0]:,} x {call.size[1]}, {'backward' if call.size[2] else 'forward'}"
    else:
        size = show_size(call.size[0])
    return call.operation, size, call.seconds * 1e6


def _rate(call: TimedCall) -> tuple[Cell, Cell]:
    """Cells of a call's rate: GFLOP/s, or GB/s; the other one is None."""
    return (call.rate / 1e9, None) if call.unit == "FLOP/s" else (None, call.rate / 1e9)


def constants(machine: Machine) -> Table:
    """The table of the machine's fitted constants (rates, overheads) next to the planner's defaults."""
    assumed = Constants()._asdict()
    return Table(
        title="Constant",
        notes=(describe_interval(machine),),
        columns=(Column(title=""), Column(title="this machine"), Column(title="default"), Column(title="unit")),
        rows=tuple(
            (name, f"{claim.value:.4g}", f"{assumed[name]:.4g}", claim.unit)
            for name, claim in machine.calibration.items()
        ),
    )


def runs(fitted: FittedMachine, max_rows: int | None = None) -> Table:
    """The predicted step of each run before and after the fit, the largest errors first. `max_rows`: only so many
    runs."""
    rows: Sequence[tuple[Cell, ...]] = [
        (
            run.name, run.layout, run.measured_s * 1e3, run.before_s * 1e3, 100 * (run.before_s / run.measured_s - 1),
            run.after_s * 1e3, 100 * (run.after_s / run.measured_s - 1),
        )
        for run in sorted(fitted.runs, key=lambda run: -abs(run.after_s / run.measured_s - 1))
    ]  # fmt: skip
    return Table(
        title="Run",
        notes=("Steps without the profiler. Fitted runs are not a test: predict a run that was not in the fit.",),
        columns=(
            Column(title="Run"), Column(title="layout", prose=True), Column(title="measured step, ms", digits=1),
            Column(title="predicted before, ms", digits=1), Column(title="error, %", digits=1),
            Column(title="predicted after, ms", digits=1), Column(title="error, %", digits=1),
        ),
        rows=tuple(rows[:max_rows]),
    )  # fmt: skip
