"""What changed between two sides, account by account; the changes sum to the change in wall time."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.compare.side import Side
from trainyard.ledger import AccountChange, diff


def changes(before: Side, after: Side, judge: bool = True) -> tuple[AccountChange, ...]:
    """The diff of the means. With two or more full steps on each side and `judge`, bounds: the least and the
    greatest difference of any two steps. A change is worse or better only where all of them say so.

    Steps of one run are no independent samples: this is a description of two recordings, not a test.
    """
    found = diff(before.mean, after.mean)
    old, new = before.steps(), after.steps()
    if not judge or min(len(old), len(new)) < 2:
        return found
    judged: list[AccountChange] = []
    for change in found:
        was = [step.get(change.account, 0) for step in old]
        now = [step.get(change.account, 0) for step in new]
        low, high = min(now) - max(was), max(now) - min(was)
        judged.append(msgspec.structs.replace(change, low_ns=low, high_ns=high, verdict=_verdict(change.ns, low, high)))
    return tuple(judged)


def _verdict(ns: int, low: int, high: int) -> Literal["better", "worse", "same", "unknown"]:
    if low > 0:
        return "worse"
    if high < 0:
        return "better"
    return "same" if ns == 0 else "unknown"
