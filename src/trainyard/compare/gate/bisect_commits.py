"""The commit that made it worse, by the gate's own test at each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import Literal

import msgspec

from trainyard.compare.gate.verdict import Rule, Verdict

Judged = Callable[[str, Rule], Verdict]
"""A commit against the good one, until it is known or the rule's cap is reached."""


class BisectStep(msgspec.Struct, frozen=True, kw_only=True):
    commit: str
    verdict: Verdict


class Bisected(msgspec.Struct, frozen=True, kw_only=True):
    """`suspects`: the commits of which one did it, the oldest first: one where it was found, more where the runs of
    those between could not be told apart; none where the bad end is not worse. `steps`: what was asked, in order."""

    good: str
    suspects: tuple[str, ...]
    steps: tuple[BisectStep, ...]
    schema: Literal["trainyard/bisect/1"] = "trainyard/bisect/1"

    @property
    def exit_code(self) -> int:
        told = len(self.suspects) == 1 or self.steps[0].verdict.says == "not worse"
        return 0 if told else 3


def bisect(
    good: str, commits: Sequence[str], judged: Judged, rule: Rule, told: Callable[[BisectStep], None]
) -> Bisected:
    """`commits`: those after `good`, the oldest first; the last is the bad end, and is asked about first. Every commit
    from the culprit on must be worse. All answers together err as seldom as `rule` says.

    What cannot be told is passed over: its neighbours are asked, and it stays a suspect where they do not clear it."""
    questions = 1 + ceil(log2(max(2, len(commits))))
    each = rule.among(questions)
    steps: list[BisectStep] = []

    def ask(place: int) -> str:
        steps.append(BisectStep(commit=commits[place], verdict=judged(commits[place], each)))
        told(steps[-1])
        return steps[-1].verdict.says

    if ask(len(commits) - 1) != "worse":
        return Bisected(good=good, suspects=(), steps=tuple(steps))
    cleared, guilty = -1, len(commits) - 1
    unclear: set[int] = set()
    while open_ := [place for place in range(cleared + 1, guilty) if place not in unclear]:
        middle = (cleared + guilty) / 2
        place = min(open_, key=lambda one: abs(one - middle))
        said = ask(place)
        if said == "worse":
            guilty = place
        elif said == "not worse":
            cleared = place
        else:
            unclear.add(place)
    return Bisected(good=good, suspects=tuple(commits[cleared + 1 : guilty + 1]), steps=tuple(steps))
