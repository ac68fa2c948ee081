"""Constants from runs of one's own: predicted against measured, account by account; what disagrees is what moves."""

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
"""Of the logarithms of a measured step and of its parts."""
_SMALL = 0.01
"""Of a step: parts do not differ by what is less."""
_ALWAYS = (
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
_WITH_RANKS = ("inside", "inside_s", "overlap", "host_collective_s")
_ON_THE_HOST = ("host_forward_s", "host_backward_s")
_PRIOR, _LOOSE = 1.0, 2.0
"""How far a constant may be from what probes said, and what Python takes from what was assumed: of the logarithm."""
_LEAST = 4
"""Runs from which a spread can be told: each is predicted from the others."""


class MeasuredRun(NamedTuple):
    """A run: its job, and the mean ledger of its profiled steps. `seconds`: of a step without the profiler."""

    name: str
    job: Job
    ledger: Ledger
    seconds: float

    def parts(self, by_way: bool = False) -> dict[str, float]:
        """Seconds by part, as if the profiler cost all parts alike. `by_way`: the backward pass's apart."""
        found: dict[str, float] = {}
        for entry in self.ledger.entries:
            part = part_of(entry.account) + _way(entry.phase, by_way)
            found[part] = found.get(part, 0.0) + entry.ns / self.ledger.wall_ns * self.seconds
        return found


def part_of(account: Account) -> str:
    """What is compared: a prediction knows fewer accounts than a trace."""
    if account.kind == "compute":
        return account.what if account.what in ("matmul", "attention", "optimizer") else "elementwise"
    return {"comm": "comm", "imbalance": "comm", "bubble": "bubble"}.get(account.kind, "host")


def _way(phase: str, by_way: bool) -> str:
    return " backward" if by_way and phase == "backward" else ""


def predicted_parts(found: StepTime, by_way: bool = False) -> list[dict[str, float]]:
    """Of each case."""
    places = np.size(found.wall)
    parts: dict[str, npt.NDArray[np.float64]] = {}
    for line in found.lines:
        part = _part_named(line.account) + _way(line.phase, by_way)
        parts[part] = parts.get(part, np.zeros(places)) + line.seconds
    return [{part: float(seconds[place]) for part, seconds in parts.items()} for place in range(places)]


@cache
def _part_named(account: str) -> str:
    return part_of(Account.parse(account))


Known = Sequence[tuple[float, dict[str, float]]]
"""Of each run: the seconds of its step, and of its parts by way."""


def _off(known: Known, found: StepTime) -> npt.NDArray[np.float64]:
    off: list[float] = []
    for wall, mine, (whole, parts) in zip(found.wall, predicted_parts(found, by_way=True), known, strict=True):
        off.append(np.log(wall / whole) / _STEP_NOISE)
        small = _SMALL * whole
        for part, seconds in parts.items():
            off.append(np.log((mine.get(part, 0.0) + small) / (seconds + small)) / _PART_NOISE)
    return np.array(off)


def _fitted(machine: Machine, assumed: Constants, runs: Sequence[MeasuredRun]) -> Constants:
    names = _ALWAYS + (_WITH_RANKS if any(run.job.layout.ranks > 1 for run in runs) else ())
    names += _ON_THE_HOST if machine.device.vendor == "cpu" else ()
    priors = [_LOOSE if name.startswith(("host", "microbatch", "step")) else _PRIOR for name in names]
    known = [(run.seconds, run.parts(by_way=True)) for run in runs]
    of, where = cases.of_jobs([run.job for run in runs]), hardware.of_machine(machine, runs[0].job.recipe.dtype)
    return solve(assumed, names, lambda tuned: _off(known, step.step(of, where, tuned)), priors)


def calibrated(machine: Machine, assumed: Constants, runs: Sequence[MeasuredRun]) -> Machine:
    """`machine` with constants that fit these runs of it, and where there are enough of them with a spread: how far
    each is from what the others predict of it. Raises `BadInput` for runs in several number formats."""
    formats = sorted({run.job.recipe.dtype for run in runs})
    if len(formats) > 1:
        raise BadInput(f"the runs compute in {' and '.join(formats)}: a peak is of one format.", "Fit each by itself.")
    found = _fitted(machine, assumed, runs)
    said = f"trainyard probe: fitted to {len(runs)} runs: {', '.join(run.name for run in runs)}"
    today = date.today().isoformat()
    moved = {
        name: Claim(
            value=float(f"{value:.5g}"),
            unit="s" if name.endswith("_s") else "share",
            source=said,
            date=today,
            measured=True,
        )
        for name, value in found._asdict().items()
        if value != getattr(assumed, name)
    }
    return replace(machine, tuned=machine.tuned | moved, spread=_spread(machine, assumed, runs))


def _spread(machine: Machine, assumed: Constants, runs: Sequence[MeasuredRun]) -> tuple[float, float] | None:
    if len(runs) < _LEAST:
        return machine.spread
    ratios: list[float] = []
    for place, run in enumerate(runs):
        others = [*runs[:place], *runs[place + 1 :]]
        ratios.append(run.seconds / seconds(machine, _fitted(machine, assumed, others), run.job))
    return round(min(1.0, *ratios), 4), round(max(1.0, *ratios), 4)


def predicted(machine: Machine, tuned: Constants, jobs: Sequence[Job]) -> StepTime:
    """A case a job; all compute in the format of the first."""
    return step.step(cases.of_jobs(jobs), hardware.of_machine(machine, jobs[0].recipe.dtype), tuned)


def seconds(machine: Machine, tuned: Constants, job: Job) -> float:
    """Of a step."""
    return float(predicted(machine, tuned, [job]).wall[0])
