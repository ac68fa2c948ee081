"""Plan: a job with its predicted ledger, prediction interval, memory, and the assumptions behind them."""

from __future__ import annotations

import msgspec

from trainyard.errors import BadInput
from trainyard.job import Job
from trainyard.ledger import Ledger
from trainyard.machine import Claim


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of a step on a rank. `kind`: such as `all_gather`; `axis`: the mesh axis of their ranks; `calls`:
    their number; `bytes`: of the gathered, scattered or reduced tensors, each before it is divided over ranks."""

    kind: str
    axis: str
    calls: int
    bytes: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`low` to `high`: the 80 % prediction interval of the step's wall time in ns; `calibrated`: whether it comes from
    measurements of similar trainings, and not from an assumed range; `uncalibrated_because`: why it does not, a
    clause; `memory`: bytes by part (such as `parameter`) on the rank that needs most; `assumptions`: the constants of
    the prediction, with their sources."""

    job: Job
    ledger: Ledger
    low: int
    high: int
    memory: dict[str, int]
    assumptions: tuple[Claim, ...] = ()
    calibrated: bool = False
    uncalibrated_because: str = ""

    def __post_init__(self) -> None:
        if self.ledger.basis != "predicted":
            raise BadInput(f"a plan's ledger must be predicted, not {self.ledger.basis}.")
        if not self.low <= self.ledger.wall_ns <= self.high:
            raise BadInput(f"the step of {self.ledger.wall_ns} ns lies outside its bounds {self.low} to {self.high}.")
