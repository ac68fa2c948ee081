"""The comparison of two sides as plain data: what `api.diff` returns and `trainyard diff --json` prints."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.compare.account_changes import compare_accounts
from trainyard.compare.comparable import check_comparability
from trainyard.compare.side import Side
from trainyard.ledger import Account

SCHEMA = "trainyard/diff/1"


class ComparedSide(msgspec.Struct, frozen=True, kw_only=True):
    """`wall_ns`: the mean profiled step, of which `unrecognised_ns` is in no known account. `timed_ns`: the median step
    without the profiler; 0 if none was timed."""

    name: str
    wall_ns: int
    timed_ns: int
    unrecognised_ns: int


class ComparedAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The time of an account in a step, on each side. `ns`: after - before. `low_ns`, `high_ns`: the least and the
    greatest difference of any two steps; None if a side has fewer than two."""

    account: Account
    before_ns: int
    after_ns: int
    ns: int
    low_ns: int | None
    high_ns: int | None
    verdict: Literal["better", "worse", "same", "unknown"]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """`changes`: their `ns` sum to `wall_change_ns`. `reasons`: why the sides cannot be compared. `doubts`: why it is
    unknown whether they did the same work, or which is faster. `caveats`: other differences of the two recordings."""

    schema: str
    before: ComparedSide
    after: ComparedSide
    wall_change_ns: int
    comparable: bool
    reasons: tuple[str, ...]
    doubts: tuple[str, ...]
    caveats: tuple[str, ...]
    changes: tuple[ComparedAccount, ...]


def compare(before: Side, after: Side) -> Comparison:
    """The comparison of two sides; accounts are judged only if both did the same work."""
    judged = check_comparability(before, after)
    return Comparison(
        schema=SCHEMA,
        before=_describe_side(before),
        after=_describe_side(after),
        wall_change_ns=after.mean.wall_ns - before.mean.wall_ns,
        comparable=not judged.reasons,
        reasons=judged.reasons,
        doubts=(*judged.doubts, *([judged.unsure] if judged.unsure else ())),
        caveats=judged.caveats,
        changes=tuple(
            ComparedAccount(
                account=change.account, before_ns=change.before_ns, after_ns=change.after_ns, ns=change.ns,
                low_ns=change.low_ns, high_ns=change.high_ns, verdict=change.verdict,
            )
            for change in compare_accounts(before, after, judge=judged.same_work)
        ),
    )  # fmt: skip


def _describe_side(side: Side) -> ComparedSide:
    mean = side.mean
    return ComparedSide(
        name=side.name, wall_ns=mean.wall_ns, timed_ns=side.timed_ns, unrecognised_ns=mean.unrecognised_ns
    )
