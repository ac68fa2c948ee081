"""Findings that appeared, went away or stayed between two runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from trainyard.finding import Finding
from trainyard.report.comparison.compared_run import ComparedRun

FINDING_STATUSES = {"appeared": "appeared", "gone": "went away", "both": "in both", "unpaired": "in one run"}
"""Status of a finding -> its text."""


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of either run: `appeared` is only in `after`, `gone` only in `before`, `both` in both. `unpaired`: the
    other run cannot have findings, since it is a plan or was not profiled. `cost_change_ns`: after - before; a missing
    finding costs 0."""

    status: Literal["appeared", "gone", "both", "unpaired"]
    before: Finding | None
    after: Finding | None
    cost_change_ns: int


def compare_findings(before: ComparedRun, after: ComparedRun) -> tuple[FindingChange, ...]:
    """The findings of both runs, the largest absolute change of the cost first. Findings correspond if they have the
    same rule and account, else if they have the same rule; of several, the heaviest of one run corresponds to the
    heaviest of the other."""
    olds, news = _by_weight(before), _by_weight(after)
    if not (_can_have_findings(before) and _can_have_findings(after)):
        changes = [
            *(_describe("unpaired", None, item) for item in news),
            *(_describe("unpaired", item, None) for item in olds),
        ]
    else:
        pairs, olds, news = _pair(olds, news, lambda finding: (finding.rule, str(finding.account)))
        more_pairs, olds, news = _pair(olds, news, lambda finding: finding.rule)
        changes = [
            *(_describe("both", old, new) for old, new in (*pairs, *more_pairs)),
            *(_describe("appeared", None, item) for item in news),
            *(_describe("gone", item, None) for item in olds),
        ]
    return tuple(sorted(changes, key=lambda change: -abs(change.cost_change_ns)))


def _can_have_findings(compared: ComparedRun) -> bool:
    """Whether the rules had a ledger to examine."""
    return compared.analysis is not None and compared.side is not None


def _by_weight(compared: ComparedRun) -> list[Finding]:
    """The findings of a run, the heaviest first."""
    findings = compared.analysis.findings if compared.analysis else ()
    return sorted(findings, key=lambda finding: -finding.weight)


def _pair(
    olds: Sequence[Finding], news: Sequence[Finding], key: Callable[[Finding], object]
) -> tuple[list[tuple[Finding, Finding]], list[Finding], list[Finding]]:
    """(pairs of findings with equal keys in the given order, those of `olds` without a partner, those of `news`)."""
    waiting: dict[object, list[Finding]] = defaultdict(list)
    for old in olds:
        waiting[key(old)].append(old)
    pairs: list[tuple[Finding, Finding]] = []
    unpaired: list[Finding] = []
    for new in news:
        if partners := waiting[key(new)]:
            pairs.append((partners.pop(0), new))
        else:
            unpaired.append(new)
    paired = {id(old) for old, _ in pairs}
    return pairs, [old for old in olds if id(old) not in paired], unpaired


def _describe(
    status: Literal["appeared", "gone", "both", "unpaired"], before: Finding | None, after: Finding | None
) -> FindingChange:
    """The change from `before` to `after`, of which one may be missing."""
    cost_change_ns = (after.cost_ns if after else 0) - (before.cost_ns if before else 0)
    return FindingChange(status=status, before=before, after=after, cost_change_ns=cost_change_ns)
