"""Plan: a job with its predicted ledger, the bounds around it, its memory, and why it is believed."""

from __future__ import annotations

import msgspec

from trainyard.errors import BadInput
from trainyard.job import Job
from trainyard.ledger import Ledger
from trainyard.machine import Claim


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`low` and `high` bound the step's wall time (ns); `memory` is bytes by part on the fullest rank."""

    job: Job
    ledger: Ledger
    low: int
    high: int
    memory: dict[str, int]
    assumptions: tuple[Claim, ...] = ()

    def __post_init__(self) -> None:
        if self.ledger.basis != "predicted":
            raise BadInput(f"a plan's ledger is predicted, not {self.ledger.basis}.")
        if not self.low <= self.ledger.wall_ns <= self.high:
            raise BadInput(f"the step of {self.ledger.wall_ns} ns lies outside its bounds {self.low} to {self.high}.")
