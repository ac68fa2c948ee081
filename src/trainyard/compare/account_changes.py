"""The change of each ledger account between two sides; the changes sum to the change in wall time."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.compare.side import Side
from trainyard.ledger import AccountChange, diff


def compare_accounts(before: Side, after: Side, judge: bool = True) -> tuple[AccountChange, ...]:
    """The diff of the mean ledgers. With `judge` and at least two full steps on each side, each change has bounds: the
    smallest and the largest difference between any step of one side and any step of the other. The verdict is better
    or worse only if all of these differences have the same sign.

    Steps of one run are not independent samples: this describes two recordings and is not a statistical test.
    """
    mean_changes = diff(before.mean, after.mean)
    old, new = before.steps(), after.steps()
    if not judge or min(len(old), len(new)) < 2:
        return mean_changes
    judged: list[AccountChange] = []
    for change in mean_changes:
        old_ns = [step.get(change.account, 0) for step in old]
        new_ns = [step.get(change.account, 0) for step in new]
        low, high = min(new_ns) - max(old_ns), max(new_ns) - min(old_ns)
        judged.append(
            msgspec.structs.replace(change, low_ns=low, high_ns=high, verdict=_judge_bounds(change.ns, low, high))
        )
    return tuple(judged)


def _judge_bounds(ns: int, low: int, high: int) -> Literal["better", "worse", "same", "unknown"]:
    """The verdict on a change of `ns` with the confidence bounds `low` and `high`: more time is worse; `unknown` if the
    bounds include 0."""
    if low > 0:
        return "worse"
    if high < 0:
        return "better"
    return "same" if ns == 0 else "unknown"
