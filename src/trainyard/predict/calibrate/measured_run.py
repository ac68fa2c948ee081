"""A measured run as the fit of constants sees it: seconds of a step without the profiler, by part.

A part is a group of accounts (categories of time) that a prediction distinguishes: it has fewer accounts than a trace.
"""

from __future__ import annotations

from typing import NamedTuple

from trainyard.job import Job
from trainyard.ledger import Account, Ledger
from trainyard.predict.calibrate.profiler_cost import seconds_without_profiler


class MeasuredRun(NamedTuple):
    """A run: its job and the mean ledger of its profiled steps. `seconds`: of a step without the profiler; `noise`: the
    standard error of its logarithm; `on_device`: whether the work ran on an accelerator, not on the host's cores."""

    name: str
    job: Job
    ledger: Ledger
    seconds: float
    noise: float = 0.0
    on_device: bool = False

    def parts(self, split_backward: bool = False) -> dict[str, float]:
        """Seconds of a step by part (as named by `part_of_account`), without the cost of the profiler.
        `split_backward`: list the backward pass separately, as `matmul backward`."""
        seconds_by_part: dict[str, float] = {}
        entry_s = seconds_without_profiler(self.ledger, self.seconds, self.on_device)
        for entry, seconds in zip(self.ledger.entries, entry_s.tolist(), strict=True):
            part = part_of_account(entry.account) + direction_suffix(entry.phase, split_backward)
            seconds_by_part[part] = seconds_by_part.get(part, 0.0) + seconds
        return seconds_by_part


def part_of_account(account: Account) -> str:
    """The part of a step that an account belongs to: matmul, attention, optimizer, elementwise, comm, bubble or
    host."""
    if account.kind == "compute":
        return account.what if account.what in ("matmul", "attention", "optimizer") else "elementwise"
    return {"comm": "comm", "straggler": "comm", "bubble": "bubble"}.get(account.kind, "host")


def direction_suffix(phase: str, split_backward: bool) -> str:
    """The suffix of a part's name: ` backward` for the backward pass if it is listed separately, else empty."""
    return " backward" if split_backward and phase == "backward" else ""
