"""The change of each ledger account between two sides; the changes sum to the change in wall time.

An account is a category of time of a training step, such as `compute/matmul`; a side is one of the two recordings that
are compared, with a ledger (account -> ns) per step and their mean.
"""

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
    old_steps, new_steps = before.steps(), after.steps()
    if not judge or min(len(old_steps), len(new_steps)) < 2:
        return mean_changes
    judged: list[AccountChange] = []
    for change in mean_changes:
        # ns of the account in each step of a side.
        old_ns = [step.get(change.account, 0) for step in old_steps]
        new_ns = [step.get(change.account, 0) for step in new_steps]
        low_ns, high_ns = min(new_ns) - max(old_ns), max(new_ns) - min(old_ns)
        judged.append(
            msgspec.structs.replace(
                change, low_ns=low_ns, high_ns=high_ns, verdict=_judge_bounds(change.ns, low_ns, high_ns)
            )
        )
    return tuple(judged)


def _judge_bounds(ns: int, low_ns: int, high_ns: int) -> Literal["better", "worse", "same", "unknown"]:
    """The verdict on a change of `ns` between the bounds `low_ns` and `high_ns`: more time is worse; `unknown` if the
    bounds include 0."""
    if low_ns > 0:
        return "worse"
    if high_ns < 0:
        return "better"
    return "same" if ns == 0 else "unknown"
