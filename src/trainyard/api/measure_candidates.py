"""`measure_plan`: short runs of the best layouts of a plan, and the constants of the machine fitted to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log
from pathlib import Path

from msgspec.structs import replace

from trainyard import units
from trainyard.api import probe_machine
from trainyard.api.measure_rounds import JobRuns, devices_here, run_rounds
from trainyard.api.plan_layouts import PlanOptions, load_machine, plan_layouts, plan_on
from trainyard.api.write_candidates import write_candidates
from trainyard.compare.interleaved_steps import compare_with_fastest, mean_step
from trainyard.errors import BadInput
from trainyard.machine import Machine
from trainyard.machine_load import load_warning
from trainyard.predict.calibrate.fit_constants import MeasuredRun
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.search.layout_cost import cost_job
from trainyard.record import Run
from trainyard.report.plans.describe_candidates import describe_candidates, name_layout
from trainyard.report.plans.measured_plans import CandidateRuns, MeasuredCandidate, MeasuredPlans, Mode
from trainyard.report.plans.plans_file import Plans
from trainyard.report.plans.probe_results import FittedMachine
from trainyard.report.plans.select_candidates import select_candidates
from trainyard.run.local.host_devices import capacity
from trainyard.run.session import Session
from trainyard.store.run_summary import summarise


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """`top`: number of candidates. `rounds`: runs of each; `steps`: timed steps of a run. `dry_run`: run nothing.
    `fresh`: run all again. `out_dir`: write launch configurations to this folder in place of running them."""

    top: int = 3
    rounds: int = 5
    steps: int = 5
    dry_run: bool = False
    fresh: bool = False
    out_dir: str = ""


def measure_candidates(
    model: str | None, framework: str, options: PlanOptions, measurement: MeasureOptions, session: Session
) -> MeasuredPlans:
    """Plans as `plan_layouts`, then measures the best candidates, or writes their launch configurations for another
    framework or with `out_dir`. Raises `BadInput` for options out of range, a mixed cluster, or candidates that need
    more devices than this host has."""
    _check(options, measurement)
    machine = load_machine(options.machine)
    plans = plan_layouts(model, framework, options)
    records = select_candidates(plans, measurement.top)
    writes = bool(measurement.out_dir) or plans.framework != "trainyard"
    mode: Mode = "dry-run" if measurement.dry_run else "files" if writes else "measured"
    result = describe_candidates(plans, records, mode, measurement.rounds, measurement.steps)
    if measurement.dry_run:
        return result
    if writes:
        folder = Path(measurement.out_dir or result.candidates[0].job.name)
        return write_candidates(result, plans, records, machine, options.machine, folder)
    _check_devices(result, machine, session)
    outcomes = run_rounds(
        {candidate.name: candidate.job for candidate in result.candidates},
        measurement.rounds, session, fresh=measurement.fresh,
    )  # fmt: skip
    measured = _with_runs(result, outcomes)
    if not measured.measured:
        return measured
    for candidate in measured.measured:
        session.store.tag(_typical_run(outcomes[candidate.name].runs).id, candidate.name)
    fit = probe_machine.fit(machine, [_as_measured_run(candidate, outcomes) for candidate in measured.measured])
    return _with_fit(measured, fit, plan_on(fit.machine, model, framework, options), plans.framework)


def _check(options: PlanOptions, measurement: MeasureOptions) -> None:
    """Raises `BadInput` for numbers below 1 and for a mixed cluster."""
    for flag, value in (("--top", measurement.top), ("--rounds", measurement.rounds), ("--steps", measurement.steps)):
        if value < 1:
            raise BadInput(f"{flag} {value} must be at least 1.")
    if "," in options.machine:
        raise BadInput(
            f"--machine {options.machine}: layouts of a mixed cluster cannot be measured here.",
            "Pass the machine file of this host: trainyard probe --out here.toml.",
        )


def _check_devices(result: MeasuredPlans, machine: Machine, session: Session) -> None:
    """Raises `BadInput` if the candidates need more ranks than this host can run."""
    devices = devices_here(session)
    ranks, available = result.candidates[0].job.layout.ranks, capacity(devices)
    nodes = ceil(ranks / machine.ranks_per_host)
    if ranks > available:
        raise BadInput(
            f"The candidates need {units.counted(ranks, 'rank')}, but this host can run {available} "
            f"({devices[0].name}).",
            "Repeat the command with --out-dir FOLDER: it writes the job file of each candidate, and prints the "
            f"commands (trainyard launch) that start them on {units.counted(nodes, 'node')}.",
        )


def _with_runs(result: MeasuredPlans, outcomes: Mapping[str, JobRuns]) -> MeasuredPlans:
    """The result with the measured steps of the candidates whose runs are complete in all rounds."""
    steps_ns = {
        name: [float(summarise(run).step_ns) for run in outcome.runs]
        for name, outcome in outcomes.items()
        if not outcome.failure
    }
    ratios = dict(zip(steps_ns, compare_with_fastest(list(steps_ns.values())))) if steps_ns else {}
    candidates: list[MeasuredCandidate] = []
    for candidate in result.candidates:
        outcome, name = outcomes[candidate.name], candidate.name
        if outcome.failure:
            candidates.append(replace(candidate, failure=outcome.failure))
            continue
        step = mean_step(steps_ns[name])
        runs = CandidateRuns(
            step=step, error=step.step_ns / candidate.predicted_ns - 1,
            memory_bytes=max(summarise(run).memory_bytes for run in outcome.runs),
            runs=tuple(run.id for run in outcome.runs), reused=outcome.reused,
        )  # fmt: skip
        candidates.append(replace(candidate, measured=runs, versus_fastest=ratios[name]))
    return replace(result, candidates=tuple(candidates), warnings=_load_warnings(outcomes))


def _load_warnings(outcomes: Mapping[str, JobRuns]) -> tuple[str, ...]:
    """A sentence if other processes loaded the machine during some of the runs."""
    runs = [run for outcome in outcomes.values() for run in outcome.runs]
    loaded = sum(bool(load_warning(run.provenance.load)) for run in runs)
    if not loaded:
        return ()
    return (f"Other processes loaded the machine during {loaded} of {units.counted(len(runs), 'run')}.",)


def _typical_run(runs: Sequence[Run]) -> Run:
    """The run whose step is nearest to the geometric mean of all."""
    steps = [summarise(run).step_ns for run in runs]
    mean = log(mean_step(steps).step_ns)
    return min(runs, key=lambda run: abs(log(summarise(run).step_ns) - mean))


def _as_measured_run(candidate: MeasuredCandidate, outcomes: Mapping[str, JobRuns]) -> MeasuredRun:
    """A candidate as a single run to fit: rounds are repeats of one job, and would make the leave-one-out interval too
    narrow if each counted."""
    run = _typical_run(outcomes[candidate.name].runs)
    step_ns = candidate.measured.step.step_ns if candidate.measured else 0.0
    return MeasuredRun(name=candidate.name, job=run.job, ledger=run.ledgers[-1], seconds=step_ns / 1e9)


def _with_fit(result: MeasuredPlans, fit: FittedMachine, replanned: Plans, framework: str) -> MeasuredPlans:
    """The result with the steps as predicted for the fitted machine. `replanned`: the plan for that machine."""
    candidates = tuple(
        replace(
            candidate,
            after_fit_ns=cost_job(candidate.job, fit.machine, FRAMEWORKS[framework]).plan.ledger.wall_ns,
        )
        for candidate in result.candidates
    )
    return replace(result, candidates=candidates, fit=fit, recommended_after_fit=name_layout(replanned.best.plan.job))
