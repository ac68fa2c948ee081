"""The comparison of two sides as plain data: what `api.diff` returns and `trainyard diff --json` prints."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard import units, words
from trainyard.compare.account_changes import compare_accounts
from trainyard.compare.comparable import check_comparability
from trainyard.compare.operations.largest_changes import OperationChanges, find_changes
from trainyard.compare.side import Side
from trainyard.ledger import Account
from trainyard.report.view.operation_changes import operations_table
from trainyard.report.view.view import Column, Table

SCHEMA = "trainyard/diff/2"


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
    """A comparison of two recordings, account by account. `changes`: their `ns` sum to `wall_change_ns`. `reasons`: why
    the sides cannot be compared. `doubts`: why it is unknown whether they did the same work, or which is faster.
    `caveats`: other differences of the two recordings. `operations`: the change of the step by operation; None if a
    side has no host ops, for the reason in `no_operations`."""

    schema: str
    before: ComparedSide
    after: ComparedSide
    wall_change_ns: int
    comparable: bool
    reasons: tuple[str, ...]
    doubts: tuple[str, ...]
    caveats: tuple[str, ...]
    changes: tuple[ComparedAccount, ...]
    operations: OperationChanges | None = None
    no_operations: str = ""

    @property
    def headline(self) -> str:
        """The change of the step: as timed without the profiler if both sides were, else as profiled."""
        before, after = self.before, self.after
        if not self.comparable:
            return f"{before.name} and {after.name} are not comparable"
        timed = before.timed_ns and after.timed_ns
        before_ns, after_ns = (before.timed_ns, after.timed_ns) if timed else (before.wall_ns, after.wall_ns)
        step = "timed step" if timed else "step"
        doubt = "cannot tell: " if self.doubts else ""
        return (
            f"{before.name} → {after.name}: {doubt}{step} {units.show_time(before_ns)} → {units.show_time(after_ns)}, "
            f"{(after_ns - before_ns) / 1e6:+,.3f} ms ({show_change(after_ns - before_ns, before_ns)})"
        )

    def _repr_html_(self) -> str:
        """The headline and the changes of the accounts for a notebook."""
        from trainyard.report.render.html_tables import tables_html

        return tables_html(self.headline, (accounts_table(self), operations_table(self.operations, self.no_operations)))


def show_change(change: int, base: int) -> str:
    """A change relative to `base` in percent, or a dash if `base` is 0; both in the same unit."""
    return f"{100 * change / base:+.1f} %" if base else "–"


def accounts_table(comparison: Comparison) -> Table:
    """The changes of all accounts in ms, largest first, and their sum; reasons, doubts and caveats are its notes."""
    changes = sorted(comparison.changes, key=lambda change: -abs(change.ns))
    before, after = comparison.before, comparison.after
    heads = ("before, ms", "after, ms", "change, ms")
    return Table(
        title="account",
        notes=(*comparison.reasons, *comparison.doubts, *comparison.caveats),
        columns=(Column(title=""), *(Column(title=head, digits=3) for head in heads), Column(title="verdict")),
        rows=(
            *(
                (
                    change.account.label, change.before_ns / 1e6, change.after_ns / 1e6, change.ns / 1e6,
                    words.VERDICTS[change.verdict].label if comparison.comparable else "",
                )
                for change in changes
            ),
            ("step", before.wall_ns / 1e6, after.wall_ns / 1e6, comparison.wall_change_ns / 1e6, ""),
        ),
    )  # fmt: skip


def compare(before: Side, after: Side) -> Comparison:
    """Compares two sides, account by account, and by operation if both have operation trees.

    An account is judged better or worse only if both did the same work.
    """
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
        operations=_compare_operations(before, after),
        no_operations=" ".join(filter(None, map(_describe_missing, (before, after)))),
    )  # fmt: skip


def _compare_operations(before: Side, after: Side) -> OperationChanges | None:
    """The change of the step by operation; None unless both sides have an operation tree."""
    if before.operations is None or after.operations is None:
        return None
    return find_changes(before.operations, after.operations)


def _describe_missing(side: Side) -> str:
    """Why a side has no operations to compare, as a sentence; empty if it has."""
    if side.operations:
        return ""
    if side.plan:
        return f"{side.name} is a plan, which has no operations."
    if not side.events:
        return f"The traces of {side.name} were not kept: its operations are unknown."
    return f"{side.name} has no host ops: record CPU activity to compare operations."


def _describe_side(side: Side) -> ComparedSide:
    """The figures of a side that a comparison shows."""
    mean = side.mean
    return ComparedSide(
        name=side.name, wall_ns=mean.wall_ns, timed_ns=side.timed_ns, unrecognised_ns=mean.unrecognised_ns
    )
