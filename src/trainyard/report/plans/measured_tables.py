"""Tables of `trainyard plan measure`: steps, the fit, memory, and next steps."""

from __future__ import annotations

from trainyard import units
from trainyard.report.plans.measured_plans import CandidateRuns, MeasuredCandidate, MeasuredPlans
from trainyard.report.view.next_step import NextStep
from trainyard.report.view.view import Cell, Column, Table


def tables(result: MeasuredPlans) -> tuple[Table, ...]:
    """The tables of the result: measured steps, and the fit with memory; or the candidates as predicted."""
    if not result.measured:
        return (_predicted(result),)
    return (_steps(result), _fit(result))


def failures(result: MeasuredPlans) -> tuple[str, ...]:
    """A sentence for each candidate that failed."""
    return tuple(f"{each.name} ({each.layout}) failed: {each.failure}" for each in result.candidates if each.failure)


def suggest_commands(result: MeasuredPlans, machine: str, out: str) -> tuple[NextStep, ...]:
    """The commands to run next. `machine`: the machine's argument; `out`: the written machine file, empty if none."""
    if result.mode == "dry-run":
        return (NextStep("the same command without --dry-run", "measure the candidates"),)
    if not result.measured:
        return ()
    first, *others = result.measured
    steps = [NextStep(f"trainyard diff {first.name} {others[0].name}", "where the two steps differ")] if others else []
    steps.append(NextStep(f"trainyard report {first.name}", "the ledger of the fastest"))
    if len(result.inseparable) > 1:
        steps.append(NextStep(f"--rounds {2 * result.rounds}", "narrower intervals; the runs so far are reused"))
    if out:
        steps.append(NextStep(f"trainyard plan MODEL --machine {out}", "plan with the fitted constants"))
    else:
        steps.append(NextStep(f"--out {machine}", "write the fitted machine, from the same runs"))
    return tuple(steps)


def _unit(result: MeasuredPlans) -> tuple[str, float]:
    """(name, ns) of the unit of step times."""
    return ("s", 1e9) if min(each.predicted_ns for each in result.candidates) >= 1e9 else ("ms", 1e6)


def _name(candidate: MeasuredCandidate) -> str:
    """The layout, with its role in the plan."""
    return candidate.layout + " (baseline)" * candidate.baseline


def _predicted(result: MeasuredPlans) -> Table:
    """The candidates with their predicted steps and, if they were run, why that failed."""
    unit, unit_ns = _unit(result)
    return Table(
        title="Candidate",
        notes=("The first is the recommended layout. mbs: micro-batch size.",),
        columns=(
            Column(title=""), Column(title="layout", prose=True), Column(title=f"step, {unit}", digits=2, id=True),
            Column(title=f"80 % interval, {unit}", id=True), Column(title="tied"),
        ),
        rows=tuple(
            (each.name, _name(each), each.predicted_ns / unit_ns, _range(each.low_ns, each.high_ns, unit_ns),
             "yes" if each.tied else "no")
            for each in result.candidates
        ),
    )  # fmt: skip


def _steps(result: MeasuredPlans) -> Table:
    """Predicted and measured steps, the fastest first, then the candidates that failed."""
    unit, unit_ns = _unit(result)
    failed = [each for each in result.candidates if each.measured is None]
    return Table(
        title="Layout",
        notes=(
            "Predicted: with the 80 % prediction interval. Measured: mean over "
            f"{units.counted(result.rounds, 'round')} with its {100 * result.confidence:g} % confidence interval. "
            "Error: measured over predicted step. vs. fastest: of the measured steps; tied if the interval of their "
            "ratio includes 1. mbs: micro-batch size.",
        ),
        columns=(
            Column(title="", prose=True), Column(title=f"predicted, {unit}", id=True),
            Column(title=f"measured, {unit}", id=True), Column(title="error, %", id=True),
            Column(title="vs. fastest", id=True),
        ),
        rows=tuple(_step_row(each, unit_ns) for each in (*result.measured, *failed)),
    )  # fmt: skip


def _step_row(candidate: MeasuredCandidate, unit_ns: float) -> tuple[Cell, ...]:
    """The cells of a candidate in the table of steps."""
    bounds = _range(candidate.low_ns, candidate.high_ns, unit_ns)
    predicted = f"{_number(candidate.predicted_ns / unit_ns)} ({bounds})"
    runs = candidate.measured
    if runs is None:
        return _name(candidate), predicted, "failed", None, None
    measured = _number(runs.step.step_ns / unit_ns)
    if runs.step.low_ns is not None and runs.step.high_ns is not None:
        measured += f" ({_range(runs.step.low_ns, runs.step.high_ns, unit_ns)})"
    return _name(candidate), predicted, measured, f"{100 * runs.error:+.0f}", _versus(candidate)


def _versus(candidate: MeasuredCandidate) -> str:
    """`fastest`, `tied`, or by how much a candidate is slower."""
    ratio = candidate.versus_fastest
    if ratio is None or ratio.ratio == ratio.low == 1:
        return "fastest"
    slower = f"{100 * (ratio.ratio - 1):+.1f} %"
    return slower if ratio.separated else f"tied, {slower}"


def _fit(result: MeasuredPlans) -> Table:
    """Steps as predicted before and after the fit, in the order that the fitted machine predicts, and peak memory."""
    unit, unit_ns = _unit(result)
    fit = result.fit
    on_cpu = fit is not None and fit.machine.device.vendor == "cpu"
    resident = "On a CPU, measured memory is resident memory, which includes Python and its libraries."
    return Table(
        title="Fit, and peak memory of a rank",
        notes=(
            *((fit.headline,) if fit else ()),
            f"A plan for the fitted machine recommends {result.recommended_after_fit}.",
            *((resident,) if on_cpu else ()),
        ),
        columns=(
            Column(title="", prose=True), Column(title=f"before, {unit}", digits=1),
            Column(title=f"after, {unit}", digits=1), Column(title=f"measured, {unit}", digits=1),
            Column(title="predicted, GB", digits=2), Column(title="measured, GB", digits=2),
        ),
        rows=tuple(
            (_name(each), each.predicted_ns / unit_ns, (each.after_fit_ns or 0) / unit_ns, runs.step.step_ns / unit_ns,
             each.predicted_bytes / 1e9, runs.memory_bytes / 1e9)
            for each, runs in sorted(_with_runs(result), key=lambda pair: pair[0].after_fit_ns or 0)
        ),
    )  # fmt: skip


def _with_runs(result: MeasuredPlans) -> list[tuple[MeasuredCandidate, CandidateRuns]]:
    """The measured candidates, the fastest first, with their runs."""
    return [(each, each.measured) for each in result.measured if each.measured is not None]


def _range(low: float, high: float, unit_ns: float) -> str:
    """Bounds in ns, in the unit."""
    return f"{_number(low / unit_ns)} to {_number(high / unit_ns)}"


def _number(value: float) -> str:
    """A number with at least three significant digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"
