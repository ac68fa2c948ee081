"""Bisection of commits with the gate's sequential test at each step.

A verdict says whether a commit is `worse` or `not worse` than the good one, or is unclear. A rule has the error rate
and the largest number of pairs of runs of a test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import Literal

import msgspec

from trainyard.compare.gate.verdict import Rule, Verdict

JudgeCommit = Callable[[str, Rule], Verdict]
"""Judges a commit against the good one, until the verdict is clear or the rule's cap is reached."""


class BisectStep(msgspec.Struct, frozen=True, kw_only=True):
    commit: str
    verdict: Verdict


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """`suspects`: the commits of which one is the culprit, the oldest first: one if it was found, more if the verdicts
    between them stayed unclear or were too many, none if the bad end is not worse. `steps`: the judged commits, in
    order."""

    good: str
    suspects: tuple[str, ...]
    steps: tuple[BisectStep, ...]
    schema: Literal["trainyard/bisect/2"] = "trainyard/bisect/2"

    @property
    def exit_code(self) -> int:
        conclusive = len(self.suspects) == 1 or self.steps[0].verdict.outcome == "not worse"
        return 0 if conclusive else 3


def bisect(
    good: str, commits: Sequence[str], judge_commit: JudgeCommit, rule: Rule, report: Callable[[BisectStep], None]
) -> Bisection:
    """Find the first commit that is worse than `good`.

    `commits`: those after `good`, the oldest first; the last is the bad end and is judged first. Every commit from the
    culprit on must be worse. The error rate of `rule` holds for all verdicts together: each verdict has an equal part
    of it. `report`: called per step.

    A commit with an unclear verdict is skipped: its neighbours are judged, and it stays a suspect unless they clear it.
    At most twice as many commits are judged as are needed if all verdicts are clear; then the rest stay suspects."""
    judgements_if_clear = 1 + ceil(log2(max(1, len(commits))))  # the bad end, and one for each halving
    max_judgements = min(len(commits), 2 * judgements_if_clear)
    commit_rule = rule.among(max_judgements)
    steps: list[BisectStep] = []

    def judge(index: int) -> str:
        """Judges the commit at `index`, appends the verdict to `steps`, and returns its outcome."""
        steps.append(BisectStep(commit=commits[index], verdict=judge_commit(commits[index], commit_rule)))
        report(steps[-1])
        return steps[-1].verdict.outcome

    if judge(len(commits) - 1) != "worse":
        return Bisection(good=good, suspects=(), steps=tuple(steps))
    last_cleared, first_worse = -1, len(commits) - 1  # indices of commits; -1 is the good one
    unclear: set[int] = set()
    while remaining := [index for index in range(last_cleared + 1, first_worse) if index not in unclear]:
        if len(steps) == max_judgements:
            break
        middle_index = (last_cleared + first_worse) / 2
        nearest = min(remaining, key=lambda index: abs(index - middle_index))
        result = judge(nearest)
        if result == "worse":
            first_worse = nearest
        elif result == "not worse":
            last_cleared = nearest
        else:
            unclear.add(nearest)
    return Bisection(good=good, suspects=tuple(commits[last_cleared + 1 : first_worse + 1]), steps=tuple(steps))
