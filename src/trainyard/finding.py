"""Finding: a diagnosed cause with its cost in ns and a remedy."""

from __future__ import annotations

import msgspec

from trainyard import words
from trainyard.errors import BadInput
from trainyard.ledger import Account


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A recommended action. `wins_ns`: upper bound of its gain, in ns per step."""

    says: str
    wins_ns: int = 0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a diagnosis rule. `says`: one sentence; `cost_ns`: ns per step; `sure`: confidence from 0 to 1."""

    rule: str
    severity: str
    account: Account
    cost_ns: int
    says: str
    evidence: str = ""
    remedy: Remedy | None = None
    sure: float = 1.0

    def __post_init__(self) -> None:
        """Raise `BadInput` for an unknown severity, a confidence outside 0 to 1 or a negative cost."""
        words.check(self.severity, words.SEVERITIES, "severity")
        if not 0 <= self.sure <= 1:
            raise BadInput(f"sure = {self.sure} is not between 0 and 1.")
        if self.cost_ns < 0:
            raise BadInput(f"cost_ns = {self.cost_ns} ns must not be negative.")


def severity(cost_ns: int, wall_ns: int) -> str:
    """Severity of a cost: `high` from 10 % of the step, `medium` from 3 %, else `low`."""
    if 10 * cost_ns >= wall_ns:
        return "high"
    return "medium" if 100 * cost_ns >= 3 * wall_ns else "low"
