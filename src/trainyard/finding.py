"""Finding: a diagnosed cause with its price in ns and a remedy."""

from __future__ import annotations

import msgspec

from trainyard import words
from trainyard.change import Change
from trainyard.code_location import CodeLocation
from trainyard.errors import BadInput
from trainyard.ledger import Account


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A recommended action."""

    description: str


class CodeShare(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the program in which a finding's time was spent. `location`: the line with most of that time;
    `share`: of the finding's booked time, from 0 to 1; `ns`: per step; `samples`: the number of sampled stacks that the
    share is estimated from, 0 if the profiler recorded every call; `callee`: the function of a library in which most of
    the time was spent, called from there, None if most was spent in the user's own code; `module`: path of the
    `nn.Module` whose forward pass had most of the time, empty if none or unknown."""

    location: CodeLocation
    share: float
    ns: int
    samples: int = 0
    callee: CodeLocation | None = None
    module: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a diagnosis rule. `summary`: one sentence; `confidence`: from 0 to 1."""

    rule: str
    severity: str
    account: Account
    cost_ns: int
    """The price: ns per step that the step would be shorter without the cause. `priced`: how it was computed."""
    summary: str
    evidence: str = ""
    remedy: Remedy | None = None
    confidence: float = 1.0
    subject: str = ""
    """`summary` up to its price; empty if `summary` does not contain the price."""
    remark: str = ""
    """The rest of `summary` after its price."""
    priced: str = "bound"
    """A key of words.PRICES: `replayed`, `bound` (an upper bound) or `none` (not recoverable)."""
    interval_ns: tuple[int, int] | None = None
    """The 80 % interval of a replayed price, from its variation over steps; None for fewer than two steps."""
    booked_ns: int = 0
    """ns per step of the ledger's time that the rule attributes to the cause."""
    change: Change | None = None
    """The change of the steps that removes the cause, for a replay; None if no change expresses it."""
    beyond: Change | None = None
    """A change that `change` includes and another finding prices: `cost_ns` is the time that `change` recovers beyond
    it. None if `cost_ns` is all that `change` recovers."""
    code: tuple[CodeShare, ...] = ()
    """The functions in which the host spent the time, the largest share first; empty if the file shows no stacks."""

    def __post_init__(self) -> None:
        """Raise `BadInput` for an unknown severity or price, a confidence outside 0 to 1 or a negative cost."""
        words.check(self.severity, words.SEVERITIES, "severity")
        words.check(self.priced, words.PRICES, "priced")
        if not 0 <= self.confidence <= 1:
            raise BadInput(f"confidence = {self.confidence} is not between 0 and 1.")
        if self.cost_ns < 0:
            raise BadInput(f"cost_ns = {self.cost_ns} ns must not be negative.")

    @property
    def recoverable_ns(self) -> int:
        """ns per step that can be recovered at most or by a replay; 0 if the time is not recoverable."""
        return 0 if self.priced == "none" else self.cost_ns

    @property
    def weight(self) -> float:
        """Recoverable time times confidence, by which findings are ordered."""
        return self.recoverable_ns * self.confidence


def severity(cost_ns: int, wall_ns: int) -> str:
    """Severity of a cost: `high` from 10 % of the step, `medium` from 3 %, else `low`."""
    if 10 * cost_ns >= wall_ns:
        return "high"
    return "medium" if 100 * cost_ns >= 3 * wall_ns else "low"
