"""Randomised, interleaved A/B measurement: runs pairs of base and head on one machine until the verdict is clear.

A pair is a run of the base and a run of the head; a verdict is the outcome of the test of one metric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Literal

from trainyard.compare.gate.gate_result import GateRequest, judge_metrics
from trainyard.compare.gate.pairs import Pair, pair_runs
from trainyard.compare.gate.verdict import Verdict
from trainyard.record import Run

Side = Literal["base", "head"]
Measure = Callable[[Sequence[Side]], Sequence[Run]]
"""Runs each of the sides, in this order."""
Report = Callable[[int, tuple[Verdict, ...]], None]


def interleave_runs(
    measure: Measure, request: GateRequest, rng: Random, report: Report, across: tuple[str, ...] = ()
) -> list[Pair]:
    """Measures pairs until every verdict is clear, one is worse, or the cap of the rule is reached. `measure`: runs
    base and head in the given order; `rng` decides which side of a pair runs first: the error rate of the test depends
    on that. `report`: called with the number of pairs and the verdicts after each pair; `across`: kinds of difference
    that the sides may have in addition to code. Raises `BadInput` if a run of a pair is not complete or the two
    cannot be compared."""
    pairs: list[Pair] = []
    while len(pairs) < request.rule.max_pairs:
        order: list[Side] = ["base", "head"]
        rng.shuffle(order)
        runs = dict(zip(order, measure(order)))
        pairs.append(Pair(runs["base"], runs["head"]))
        pair_runs([runs["base"]], [runs["head"]], across)  # rejects the first pair rather than the twentieth
        verdicts = judge_metrics(pairs, request)
        report(len(pairs), verdicts)
        if all(verdict.outcome != "unclear" for verdict in verdicts) or any(
            verdict.outcome == "worse" for verdict in verdicts
        ):
            break
    return pairs
