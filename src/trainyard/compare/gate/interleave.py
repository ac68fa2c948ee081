"""Base and head take turns on one machine, a pair at a time, until the gate knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Literal

from trainyard.compare.gate.gate_result import GateRequest, verdicts
from trainyard.compare.gate.pairs import Pair, paired
from trainyard.compare.gate.verdict import Verdict
from trainyard.record import Run

Side = Literal["base", "head"]
Measure = Callable[[Sequence[Side]], Sequence[Run]]
"""A run of each side, begun in this order."""
Told = Callable[[int, tuple[Verdict, ...]], None]


def take_turns(
    measure: Measure, asked: GateRequest, lot: Random, told: Told, across: tuple[str, ...] = ()
) -> list[Pair]:
    """Pairs as they were run. Which of a pair comes first is drawn by `lot`: the test's error rate rests on it. `told`
    hears of the verdicts after each pair."""
    pairs: list[Pair] = []
    while len(pairs) < asked.rule.cap:
        order: list[Side] = ["base", "head"]
        lot.shuffle(order)
        runs = dict(zip(order, measure(order)))
        pairs.append(Pair(runs["base"], runs["head"]))
        paired([runs["base"]], [runs["head"]], across)  # refused at once, not after twenty pairs
        found = verdicts(pairs, asked)
        told(len(pairs), found)
        if all(verdict.says != "unclear" for verdict in found) or any(verdict.says == "worse" for verdict in found):
            break
    return pairs
