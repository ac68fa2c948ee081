"""Wording and cost of findings, shared by all rules.

A rule attributes a cost in ns per step to a cause and calls `finding`. A replay of the trace without the cause may
later replace the cost by a price (`Finding.priced`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from trainyard import units
from trainyard.booked import Booked
from trainyard.change import Change
from trainyard.detect.code_shares import describe_code, describe_main_code
from trainyard.events import I32, I64
from trainyard.finding import CodeShare, Finding, Remedy, severity
from trainyard.ledger import WINDOW, Account, Ledger

if TYPE_CHECKING:
    from trainyard.detect.largest_intervals import LargestIntervals

MIN_STEP_FRACTION = 0.02
"""Smallest cost to report, as a fraction of the step: noise of up to 2 % is common."""
_MAX_NAME_LENGTH = 60


def describe_step(ledger: Ledger) -> str:
    """`each 418.0 ms step`, or `the 58.1 ms window` if the trace has no step marks."""
    wall = units.show_time(ledger.wall_ns)
    return f"the {wall} window" if ledger.scope.steps == (WINDOW,) else f"each {wall} step"


def describe_cost(cost_ns: int, ledger: Ledger) -> str:
    """The cost as text: `2.3 ms of each 11.1 ms step (20 %)`."""
    return f"{units.show_time(cost_ns)} of {describe_step(ledger)} ({units.show_share(cost_ns, ledger.wall_ns, 0)})"


def matters(ledger: Ledger, cost_ns: int, min_fraction: float = MIN_STEP_FRACTION) -> bool:
    """Whether a cost, ns a step, is at least `min_fraction` of the step."""
    return cost_ns > 0 and cost_ns >= min_fraction * ledger.wall_ns


def describe_price(finding: Finding, ledger: Ledger) -> str:
    """The sentence of a finding with its price: `subject`, the cost, after `up to` for an upper bound, and `remark`."""
    if finding.priced == "replayed" and not finding.cost_ns:
        return f"{finding.subject} no time: a replay without the cause is not faster{finding.remark}"
    up_to = "up to " if finding.priced == "bound" else ""
    return f"{finding.subject} {up_to}{describe_cost(finding.cost_ns, ledger)}{finding.remark}"


def finding(
    rule: str,
    ledger: Ledger,
    account: Account,
    cost_ns: int,
    subject: str,
    *,
    evidence: str,
    remedy: str,
    confidence: float,
    wins: int | None = None,
    level: str = "",
    change: Change | None = None,
    beyond: Change | None = None,
    largest: LargestIntervals | None = None,
    code: tuple[CodeShare, ...] | None = None,
    remark: str = "",
) -> tuple[Finding]:
    """Builds a finding of `rule` as a tuple of one, the result of a rule's `check`.

    `account`: the main account of the cost. `cost_ns`: per step. `subject`: the sentence up to the cost: `Host syncs
    cost` gives `Host syncs cost up to 3.0 ms of each 9.1 ms step (33 %)`; `remark`: text after the cost. `confidence`:
    the probability that the finding is right. `wins`: 0 if no remedy recovers the time. `level`: the severity (a key of
    words.SEVERITIES); empty if the cost determines it. `change`: the change of the steps that removes the cause, with
    which a replay prices it; `beyond`: a part of that change that another finding prices. `largest`: the largest
    intervals of the cost: the sentence names one that dominates, the evidence all. `code`: the functions in which the
    host spent the cost; None for those of `largest`.
    """
    if code is None:
        code = largest.code if largest else ()
    evidence = "; ".join(filter(None, (evidence, largest.evidence if largest else "", describe_code(code))))
    remark += describe_main_code(code) + (largest.headline if largest else "")
    unpriced = Finding(
        rule=rule,
        severity=level or severity(cost_ns, ledger.wall_ns),
        account=account,
        cost_ns=cost_ns,
        summary="",
        evidence=evidence,
        remedy=Remedy(description=remedy),
        confidence=confidence,
        subject=subject,
        remark=remark,
        priced="none" if wins == 0 else "bound",
        booked_ns=cost_ns,
        change=change,
        beyond=beyond,
        code=code,
    )
    return (replace(unpriced, summary=describe_price(unpriced, ledger)),)


def mean_per_step(ranks: Sequence[Booked], totals: Iterable[int]) -> int:
    """The mean over ranks and full steps of one total per rank, rounded down, as in a mean ledger."""
    return sum(int(total) for total in totals) // max(1, sum(rank.steps for rank in ranks))


def count_per_step(ranks: Sequence[Booked], counts: Iterable[int]) -> int:
    """As `mean_per_step`, rounded up, so that a single occurrence counts as one."""
    return -(-sum(int(count) for count in counts) // max(1, sum(rank.steps for rank in ranks)))


def sum_by_key(keys: I32, ns: I64) -> list[int]:
    """Sum of `ns` for each key 0, 1, ..."""
    return np.bincount(keys, weights=ns).astype(np.int64).tolist()


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def shorten(name: str) -> str:
    """The name of a kernel or frame without addresses of objects (` at 0x7f…`), which differ in each run, shortened in
    the middle to 60 characters."""
    name = _ADDRESS.sub("", name)
    half = _MAX_NAME_LENGTH // 2
    return name if len(name) <= _MAX_NAME_LENGTH else f"{name[:half]}…{name[1 - half :]}"
