"""Calibrate constants with measured runs of a machine: fit predicted to measured seconds, account by account.

Constants are the rates and overheads of the cost model (`predict/inputs/constants.py`) besides the data sheet of a
device, such as the attainable share of the peak. An account is a category of time of the step ledger, such as
`compute/matmul`. A case is one job, as an item of every array of the cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from trainyard.errors import BadInput
from trainyard.job import Job
from trainyard.ledger import Account, Ledger
from trainyard.machine import Claim, Machine
from trainyard.predict.calibrate.least_squares import solve
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
_MIN_RUNS_FOR_SPREAD = 4
"""Fewest runs from which a spread can be estimated by leave-one-out prediction."""


class MeasuredRun(NamedTuple):
    """A run: its job and the mean ledger of its profiled steps. `seconds`: of a step without the profiler."""

    name: str
    job: Job
    ledger: Ledger
    seconds: float

    def parts(self, split_backward: bool = False) -> dict[str, float]:
        """Seconds of a step by part (as named by `part_of_account`), if the profiler slows all parts equally.
        `split_backward`: list the backward pass separately, as `matmul backward`."""
        seconds_by_part: dict[str, float] = {}
        for entry in self.ledger.entries:
            part = part_of_account(entry.account) + _direction_suffix(entry.phase, split_backward)
            seconds_by_part[part] = seconds_by_part.get(part, 0.0) + entry.ns / self.ledger.wall_ns * self.seconds
        return seconds_by_part


def part_of_account(account: Account) -> str:
    """The part of a step that an account belongs to: matmul, attention, optimizer, elementwise, comm, bubble or host. A
    prediction has fewer accounts than a trace."""
    if account.kind == "compute":
        return account.what if account.what in ("matmul", "attention", "optimizer") else "elementwise"
    return {"comm": "comm", "straggler": "comm", "bubble": "bubble"}.get(account.kind, "host")


def _direction_suffix(phase: str, split_backward: bool) -> str:
    """The suffix of a part's name: ` backward` for the backward pass if it is listed separately, else empty."""
    return " backward" if split_backward and phase == "backward" else ""


def predicted_parts(predicted: StepTime, split_backward: bool = False) -> list[dict[str, float]]:
    """Predicted seconds of a step by part (as named by `part_of_account`), a dict for each case. `split_backward`: list
    the backward pass separately, as `matmul backward`."""
    case_count = np.size(predicted.wall)
    parts: dict[str, npt.NDArray[np.float64]] = {}
    for line in predicted.lines:
        part = _part_of_account_name(line.account) + _direction_suffix(line.phase, split_backward)
        parts[part] = parts.get(part, np.zeros(case_count)) + line.seconds
    return [{part: float(seconds[case]) for part, seconds in parts.items()} for case in range(case_count)]


@cache
def _part_of_account_name(account: str) -> str:
    """`part_of_account` of an account in text form."""
    return part_of_account(Account.parse(account))


MeasuredSeconds = Sequence[tuple[float, dict[str, float]]]
"""For each run, seconds of its step, and of its parts with the backward pass listed separately."""


def _residuals(measured: MeasuredSeconds, predicted: StepTime) -> npt.NDArray[np.float64]:
    """Residuals of the fit, in standard deviations: for each run, the logarithm of predicted over measured seconds of
    its step, then of each of its parts, such as `matmul backward`. Parts far below `_NEGLIGIBLE_FRACTION` of the step
    have residuals near 0. `measured`: (seconds of the step, part -> seconds) of each run; `predicted`: with one case
    for each run, in the same order."""
    residuals: list[float] = []
    for predicted_step_s, predicted_seconds, (step_s, seconds_by_part) in zip(
        predicted.wall, predicted_parts(predicted, split_backward=True), measured, strict=True
    ):
        residuals.append(np.log(predicted_step_s / step_s) / _STEP_NOISE)
        negligible_s = _NEGLIGIBLE_FRACTION * step_s
        for part, seconds in seconds_by_part.items():
            residuals.append(
                np.log((predicted_seconds.get(part, 0.0) + negligible_s) / (seconds + negligible_s)) / _PART_NOISE
            )
    return np.array(residuals)


def _fit_constants(machine: Machine, assumed: Constants, runs: Sequence[MeasuredRun]) -> Constants:
    """Returns all constants, with those that apply to `machine` and `runs` fitted by least squares and the others as in
    `assumed`. The prior around the assumed values is narrow for probed constants and wide for host times. Constants of
    communication are fitted only if a run has several ranks, host times of a layer only on CPU devices."""
    names = _FITTED_ALWAYS + (_FITTED_WITH_RANKS if any(run.job.layout.ranks > 1 for run in runs) else ())
    names += _FITTED_ON_CPU if machine.device.vendor == "cpu" else ()
    prior_sigmas = [
        _ASSUMED_SIGMA if name.startswith(("host", "microbatch", "step")) else _PROBED_SIGMA for name in names
    ]
    measured = [(run.seconds, run.parts(split_backward=True)) for run in runs]
    run_cases = cases.of_jobs([run.job for run in runs])  # one case per run
    rank_hardware = hardware.of_machine(machine, runs[0].job.recipe.dtype)  # peak, memory and links of a rank

    def residuals(tuned: Constants) -> npt.NDArray[np.float64]:
        return _residuals(measured, step.step(run_cases, rank_hardware, tuned))

    return solve(assumed, names, residuals, prior_sigmas)


def calibrate_machine(machine: Machine, assumed: Constants, runs: Sequence[MeasuredRun]) -> Machine:
    """Returns `machine` with constants fitted to its `runs`, starting from `assumed`. With at least
    `_MIN_RUNS_FOR_SPREAD` runs it also gets a spread: the range of measured over predicted step time when each run is
    predicted with constants fitted to the others. A fitted constant is stored as a claim: value, unit, source and date.
    Raises `BadInput` for runs in several dtypes."""
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
        prediction_interval=_leave_one_out_spread(machine, assumed, runs),
    )


def _leave_one_out_spread(
    machine: Machine, assumed: Constants, runs: Sequence[MeasuredRun]
) -> tuple[float, float] | None:
    """(least, greatest) ratio of measured to predicted step time, each run predicted with constants fitted to the
    others; the range is extended to include 1. For fewer than `_MIN_RUNS_FOR_SPREAD` runs, the machine's own spread
    (None if it has none)."""
    if len(runs) < _MIN_RUNS_FOR_SPREAD:
        return machine.prediction_interval
    ratios: list[float] = []
    for index, run in enumerate(runs):
        other_runs = [*runs[:index], *runs[index + 1 :]]
        ratios.append(run.seconds / seconds(machine, _fit_constants(machine, assumed, other_runs), run.job))
    return round(min(1.0, *ratios), 4), round(max(1.0, *ratios), 4)


def predicted(machine: Machine, tuned: Constants, jobs: Sequence[Job]) -> StepTime:
    """The predicted steps of `jobs`, a case per job. All compute in the dtype of the first."""
    return step.step(cases.of_jobs(jobs), hardware.of_machine(machine, jobs[0].recipe.dtype), tuned)


def seconds(machine: Machine, tuned: Constants, job: Job) -> float:
    """Predicted seconds of a step."""
    return float(predicted(machine, tuned, [job]).wall[0])
