"""`measure_plan`: short runs of the best layouts of a plan, and the constants of the machine fitted to them."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from math import ceil, log
from typing import Literal

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

Path = str | os.PathLike[str]


def measure_plan(
    model: Path | None = None,
    *,
    machine: Path,
    devices: int | None = None,
    batch: int | None = None,
    seq_len: int | None = None,
    fix: Sequence[str] = (),
    framework: Literal["", "trainyard", "megatron", "torchtitan", "deepspeed"] = "",
    top: int = 3,
    rounds: int = 5,
    steps: int = 5,
    fresh: bool = False,
    dry_run: bool = False,
    out_dir: Path = "",
    session: Session | None = None,
) -> MeasuredPlans:
    """Measures the best layouts of a plan with short runs on this machine, and fits the machine's constants to them.

    `model` to `framework`: as for `plan`, with the machine that this host is. `top`: number of layouts: the recommended
    one, plain FSDP or DDP, then the fastest others. `rounds`: interleaved runs of each; `steps`: timed steps of a run.
    `fresh`: run everything; otherwise matching runs of an earlier call are reused. `dry_run`: run nothing. `out_dir`:
    write the launch configurations to this folder in place of running them, necessary for another framework.
    `session`: store of the runs and receiver of messages; its tag is not used.

    ```python
    result = api.measure_plan("job.toml", machine="here.toml", session=api.Session(say=print))
    for candidate in result.measured:
        print(candidate.layout, candidate.predicted_ns, candidate.measured.step, candidate.versus_fastest)
    ```

    Raises `BadInput` for numbers below 1, a mixed cluster, or layouts that need more devices than this host has, and
    the errors of `plan`. A layout that is refused or whose ranks die has a `failure`; the others are measured.
    """
    session, machine_name, model_name = session or Session(), os.fspath(machine), None if model is None else str(model)
    _check(machine_name, {"--top": top, "--rounds": rounds, "--steps": steps})
    options = PlanOptions(machine=machine_name, devices=devices, batch=batch, seq_len=seq_len, fix=fix)
    target = load_machine(machine_name)
    plans = plan_layouts(model_name, framework, options)
    records = select_candidates(plans, top)
    writes = bool(out_dir) or plans.framework != "trainyard"
    mode: Mode = "dry-run" if dry_run else "files" if writes else "measured"
    result = describe_candidates(plans, records, mode, rounds, steps)
    if dry_run and writes:
        return replace(result, rounds=0, predicted_s=0.0)
    if dry_run:
        _check_devices(result, target, session)
        return result
    if mode == "files":
        if not out_dir:
            raise BadInput(
                f"Candidates of {FRAMEWORKS[plans.framework].display_name} are not run: their configurations are "
                "written to a folder.",
                "Add --out-dir FOLDER; --dry-run shows the candidates.",
            )
        return write_candidates(result, plans, records, target, machine_name, pathlib.Path(out_dir))
    _check_devices(result, target, session)
    outcomes = run_rounds({each.name: each.job for each in result.candidates}, rounds, session, fresh=fresh)
    measured = _with_runs(result, outcomes)
    for candidate in measured.measured:
        session.store.tag(_typical_run(outcomes[candidate.name].runs).id, candidate.name)
    if not measured.measured:
        return measured
    fit = probe_machine.fit(target, [_as_measured_run(each, outcomes[each.name].runs) for each in measured.measured])
    return _with_fit(measured, fit, plan_on(fit.machine, model_name, framework, options))


def _check(machine: str, numbers: Mapping[str, int]) -> None:
    """Raises `BadInput` for a mixed cluster, and for numbers (flag -> value) below 1."""
    for flag, value in numbers.items():
        if value < 1:
            raise BadInput(f"{flag} {value} must be at least 1.")
    if "," in machine:
        raise BadInput(
            f"--machine {machine}: the layouts of a mixed cluster cannot be measured on one machine.",
            "Pass the machine file of this host: trainyard probe --out here.toml.",
        )


def _check_devices(result: MeasuredPlans, machine: Machine, session: Session) -> None:
    """Raises `BadInput` if the candidates need more ranks than this host can run, or the machine has devices of another
    vendor."""
    devices = devices_here(session)
    ranks, available = result.candidates[0].job.layout.ranks, capacity(devices)
    nodes = ceil(ranks / machine.ranks_per_host)
    if ranks > available:
        raise BadInput(
            f"The candidates need {units.counted(ranks, 'rank')}, but this host can run {available} "
            f"({devices[0].name}).",
            "Repeat the command with --out-dir FOLDER: it writes the job file of each candidate, and prints the "
            f"commands (trainyard {'run' if nodes == 1 else 'launch'}) that start them on "
            f"{units.counted(nodes, 'node')}.",
        )
    if machine.device.vendor != devices[0].vendor:
        raise BadInput(
            f"The machine {machine.name} has {machine.device.vendor} devices, but the runs would use {devices[0].name} "
            f"({devices[0].vendor}).",
            "Pass the machine file of this host (trainyard probe --out here.toml), or write the launch configurations "
            "with --out-dir FOLDER.",
        )


def _with_runs(result: MeasuredPlans, outcomes: Mapping[str, JobRuns]) -> MeasuredPlans:
    """The result with the measured steps of the candidates whose runs are complete in all rounds."""
    steps_ns = {name: _steps_ns(outcome.runs) for name, outcome in outcomes.items() if not outcome.failure}
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
    return (
        f"Other processes loaded the machine during {loaded} of {units.counted(len(runs), 'run')}: repeat the "
        "measurement with --fresh when it is idle.",
    )


def _typical_run(runs: Sequence[Run]) -> Run:
    """The run whose step is nearest to the geometric mean of all."""
    mean = log(mean_step(_steps_ns(runs)).step_ns)
    return min(runs, key=lambda run: abs(log(summarise(run).step_ns) - mean))


def _as_measured_run(candidate: MeasuredCandidate, runs: Sequence[Run]) -> MeasuredRun:
    """A candidate as a single run to fit: rounds are repeats of one job, and would make the leave-one-out interval too
    narrow if each counted."""
    run = _typical_run(runs)
    return MeasuredRun(
        name=candidate.name, job=run.job, ledger=run.ledgers[-1], seconds=mean_step(_steps_ns(runs)).step_ns / 1e9
    )


def _steps_ns(runs: Sequence[Run]) -> list[float]:
    """The median step of each run in ns."""
    return [float(summarise(run).step_ns) for run in runs]


def _with_fit(result: MeasuredPlans, fit: FittedMachine, replanned: Plans) -> MeasuredPlans:
    """The result with the steps as predicted for the fitted machine. `replanned`: the plan for that machine."""
    candidates = tuple(
        replace(
            candidate,
            after_fit_ns=cost_job(candidate.job, fit.machine, FRAMEWORKS[result.framework]).plan.ledger.wall_ns,
        )
        for candidate in result.candidates
    )
    return replace(result, candidates=candidates, fit=fit, recommended_after_fit=name_layout(replanned.best.plan.job))
