"""Calibrate constants with measured runs of a machine: fit predicted to measured seconds, account by account.

Constants are the rates and overheads of the cost model (`predict/inputs/constants.py`) besides the data sheet of a
device, such as the attainable share of the peak. An account is a category of time of the step ledger, such as
`compute/matmul`. A case is one job, as an item of every array of the cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import cache

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from trainyard.errors import BadInput
from trainyard.job import Job
from trainyard.ledger import Account
from trainyard.machine import Claim, Machine
from trainyard.predict.calibrate.call_seconds import call_seconds
from trainyard.predict.calibrate.least_squares import solve
from trainyard.predict.calibrate.left_out_interval import MIN_JOBS, prediction_interval
from trainyard.predict.calibrate.measured_run import MeasuredRun, direction_suffix, part_of_account
from trainyard.predict.inputs import cases, hardware
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.time import step
from trainyard.predict.time.step import StepTime

_STEP_NOISE, _PART_NOISE = 0.03, 0.15
"""Standard deviations of the logarithms of a measured step and of its parts."""
_NEGLIGIBLE_FRACTION = 0.01
"""Fraction of a step below which a difference of a part is negligible."""
_FITTED_ALWAYS = (
    "matmul",
    "attention",
    "attention_backward",
    "passes",
    "passes_backward",
    "logits",
    "optimizer",
    "microbatch_s",
    "step_s",
)
_FITTED_WITH_RANKS = ("intra_node", "intra_node_s", "overlap", "host_collective_s")
_FITTED_ON_CPU = ("host_forward_s", "host_backward_s")
_PROBED_SIGMA, _ASSUMED_SIGMA = 1.0, 2.0
"""Standard deviations of the logarithms of constants from probes, and of assumed host times."""


def predicted_parts(predicted: StepTime, split_backward: bool = False) -> list[dict[str, float]]:
    """Predicted seconds of a step by part (as named by `part_of_account`), a dict for each case. `split_backward`: list
    the backward pass separately, as `matmul backward`."""
    case_count = np.size(predicted.wall)
    parts: dict[str, npt.NDArray[np.float64]] = {}
    for line in predicted.lines:
        part = _part_of_account_name(line.account) + direction_suffix(line.phase, split_backward)
        parts[part] = parts.get(part, np.zeros(case_count)) + line.seconds
    return [{part: float(seconds[case]) for part, seconds in parts.items()} for case in range(case_count)]


@cache
def _part_of_account_name(account: str) -> str:
    """`part_of_account` of an account in text form."""
    return part_of_account(Account.parse(account))


MeasuredParts = Sequence[tuple[MeasuredRun, dict[str, float]]]
"""Each run with the seconds of its parts, the backward pass listed separately."""


def _residuals(measured: MeasuredParts, predicted: StepTime) -> npt.NDArray[np.float64]:
    """Residuals of the fit, in standard deviations: for each run, the logarithm of predicted over measured seconds of
    its step, then of each of its parts, such as `matmul backward`. Parts far below `_NEGLIGIBLE_FRACTION` of the step
    have residuals near 0. The noise of a run adds to that of all steps and parts, so that runs whose steps vary have
    less weight. `predicted`: with one case for each run, in the same order."""
    residuals: list[float] = []
    for predicted_step_s, predicted_seconds, (run, seconds_by_part) in zip(
        predicted.wall, predicted_parts(predicted, split_backward=True), measured, strict=True
    ):
        residuals.append(np.log(predicted_step_s / run.seconds) / np.hypot(_STEP_NOISE, run.noise))
        negligible_s, part_noise = _NEGLIGIBLE_FRACTION * run.seconds, np.hypot(_PART_NOISE, run.noise)
        for part, seconds in seconds_by_part.items():
            residuals.append(
                np.log((predicted_seconds.get(part, 0.0) + negligible_s) / (seconds + negligible_s)) / part_noise
            )
    return np.array(residuals)


def _fit_constants(machine: Machine, assumed: Constants, runs: Sequence[MeasuredRun]) -> Constants:
    """Returns all constants, with those that apply to `machine` and `runs` fitted by least squares and the others as in
    `assumed`. The prior around the assumed values is narrow for probed constants and wide for host times. Constants of
    communication are fitted only if a run has several ranks, host times of a layer only on CPU devices: their prior is
    that of the operations of the runs, if these were counted."""
    names = _FITTED_ALWAYS + (_FITTED_WITH_RANKS if any(run.job.layout.ranks > 1 for run in runs) else ())
    counted: dict[str, float] = {}
    if machine.device.vendor == "cpu":
        names += _FITTED_ON_CPU
        counted = call_seconds(runs, assumed.kernel_s)
    is_assumed = [name.startswith(("host", "microbatch", "step")) and name not in counted for name in names]
    prior_sigmas = [_ASSUMED_SIGMA if wide else _PROBED_SIGMA for wide in is_assumed]
    measured = [(run, run.parts(split_backward=True)) for run in runs]
    run_cases = cases.of_jobs([run.job for run in runs])  # one case per run
    rank_hardware = hardware.of_machine(machine, runs[0].job.recipe.dtype)  # peak, memory and links of a rank

    def residuals(tuned: Constants) -> npt.NDArray[np.float64]:
        return _residuals(measured, step.step(run_cases, rank_hardware, tuned))

    return solve(assumed._replace(**counted), names, residuals, prior_sigmas)


def calibrate_machine(machine: Machine, assumed: Constants, runs: Sequence[MeasuredRun]) -> Machine:
    """Returns `machine` with constants fitted to its `runs`, starting from `assumed`. With runs of `MIN_JOBS` different
    jobs it also gets an 80 % prediction interval from jobs that were left out of the fit, else none. A fitted constant
    is stored as a claim: value, unit, source and date. Raises `BadInput` for runs in several dtypes."""
    dtypes = sorted({run.job.recipe.dtype for run in runs})
    if len(dtypes) > 1:
        raise BadInput(
            f"the runs compute in {' and '.join(dtypes)}, but a peak is for one dtype.", "Fit each dtype separately."
        )
    fitted = _fit_constants(machine, assumed, runs)
    source = f"trainyard probe: fitted to {len(runs)} runs: {', '.join(run.name for run in runs)}"
    date_today = date.today().isoformat()
    claims = {
        name: Claim(
            value=float(f"{value:.5g}"),
            unit="s" if name.endswith("_s") else "share",
            source=source,
            date=date_today,
            measured=True,
        )
        for name, value in fitted._asdict().items()
        if value != getattr(assumed, name)  # only those that the fit changed
    }
    return replace(
        machine,
        calibration=machine.calibration | claims,
        prediction_interval=prediction_interval(_left_out_errors(machine, assumed, runs)),
    )


def _left_out_errors(machine: Machine, assumed: Constants, runs: Sequence[MeasuredRun]) -> list[float]:
    """The error of each job: the logarithm of measured over predicted seconds of its step, mean over its runs,
    predicted with constants fitted to the runs of the other jobs. Empty for fewer than `MIN_JOBS` jobs."""
    runs_by_job: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        runs_by_job.setdefault(_job_key(run.job), []).append(run)
    if len(runs_by_job) < MIN_JOBS:
        return []
    errors: list[float] = []
    for key, left_out in runs_by_job.items():
        others = [run for run in runs if _job_key(run.job) != key]
        predicted_s = seconds(machine, _fit_constants(machine, assumed, others), left_out[0].job)
        errors.append(float(np.mean([np.log(run.seconds / predicted_s) for run in left_out])))
    return errors


def _job_key(job: Job) -> str:
    """What the predicted step depends on: equal for runs of one job, however often its steps were measured."""
    return repr((job.model, job.layout, job.recipe))


def predicted(machine: Machine, tuned: Constants, jobs: Sequence[Job]) -> StepTime:
    """The predicted steps of `jobs`, a case per job. All compute in the dtype of the first."""
    return step.step(cases.of_jobs(jobs), hardware.of_machine(machine, jobs[0].recipe.dtype), tuned)


def seconds(machine: Machine, tuned: Constants, job: Job) -> float:
    """Predicted seconds of a step."""
    return float(predicted(machine, tuned, [job]).wall[0])
