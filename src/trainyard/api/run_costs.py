"""What the days, dollars and energy of a training depend on besides its step: failures, checkpoints, a power cap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trainyard.errors import BadInput
from trainyard.machine import Claim
from trainyard.predict.economics.training_budget import NO_BUDGET, TrainingBudget


@dataclass(frozen=True, kw_only=True)
class RunCosts:
    """Costs of a long training, for `plan` and `check_plan` with `tokens`; None for the default, which the plans name.

    `mtbf_hours`: mean hours between failures of one device. `restart_minutes`: from a failure until all ranks train
    again. `checkpoint_seconds`: that a checkpoint stops the training. `storage_bandwidth`: GB/s (10^9 bytes) of the
    whole job to the checkpoint store; a checkpoint then stops the training for its size over this bandwidth.
    `power_cap`: watts of each device."""

    mtbf_hours: float | None = None
    restart_minutes: float | None = None
    checkpoint_seconds: float | None = None
    storage_bandwidth: float | None = None
    power_cap: float | None = None


class _Flag(NamedTuple):
    """A value of `RunCosts`: its flag, the claim that it sets, the claim's unit and how many of it the flag's unit is,
    and the range of plausible values."""

    field: str
    claim: str
    unit: str
    factor: float
    least: float
    most: float
    measure: str

    @property
    def flag(self) -> str:
        return f"--{self.field.replace('_', '-')}"


_FLAGS = (
    _Flag("mtbf_hours", "mtbf", "h", 1.0, 1.0, 1e9, "hours between failures of one device"),
    _Flag("restart_minutes", "restart", "s", 60.0, 0.01, 1e5, "minutes"),
    _Flag("checkpoint_seconds", "save", "s", 1.0, 1e-3, 1e6, "seconds"),
    _Flag("storage_bandwidth", "storage", "bytes/s", 1e9, 1e-3, 1e6, "GB/s"),
    _Flag("power_cap", "power_cap", "W", 1.0, 1.0, 1e5, "watts of one device"),
)


def read_budget(tokens: float | None, costs: RunCosts) -> TrainingBudget:
    """The budget of `tokens`. Raises `BadInput` for a cost out of range, costs without tokens, or two costs of one
    thing."""
    given = [flag for flag in _FLAGS if getattr(costs, flag.field) is not None]
    for flag in given:
        value = getattr(costs, flag.field)
        if not flag.least <= value <= flag.most:
            raise BadInput(
                f"{flag.flag} {value:g} is not between {flag.least:g} and {flag.most:g} {flag.measure}.",
                "Correct it, or leave it out for the default.",
            )
    if given and not tokens:
        raise BadInput(
            f"{given[0].flag} changes days, dollars and energy, which need a number of tokens.", "Pass --tokens."
        )
    if costs.checkpoint_seconds is not None and costs.storage_bandwidth is not None:
        raise BadInput(
            "--checkpoint-seconds and --storage-bandwidth both set the time of a checkpoint.", "Leave out one of them."
        )
    if not tokens:
        return NO_BUDGET
    claims = {
        flag.claim: Claim(value=getattr(costs, flag.field) * flag.factor, unit=flag.unit, source=flag.flag)
        for flag in given
    }
    return TrainingBudget(tokens=tokens, **claims)
