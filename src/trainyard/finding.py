"""Finding: a named cause with its price in ns and a remedy."""

from __future__ import annotations

import msgspec

from trainyard import words
from trainyard.errors import BadInput
from trainyard.ledger import Account


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, and what it would win at most (ns a step)."""

    says: str
    wins_ns: int = 0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's judgement. `cost_ns` is a step's; `sure` from 0 to 1; `says` is one sentence."""

    rule: str
    severity: str
    account: Account
    cost_ns: int
    says: str
    evidence: str = ""
    remedy: Remedy | None = None
    sure: float = 1.0

    def __post_init__(self) -> None:
        words.check(self.severity, words.SEVERITIES, "severity")
        if not 0 <= self.sure <= 1:
            raise BadInput(f"sure = {self.sure} is not from 0 to 1.")
        if self.cost_ns < 0:
            raise BadInput(f"a finding that costs {self.cost_ns} ns is none.")


def severity(cost_ns: int, wall_ns: int) -> str:
    """The word for a cost: a tenth of the step is `high`, three per cent `medium`."""
    if 10 * cost_ns >= wall_ns:
        return "high"
    return "medium" if 100 * cost_ns >= 3 * wall_ns else "low"
