"""Runs of base and head as pairs: what is judged. Runs that cannot be held against each other are refused here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from math import log
from typing import NamedTuple

import numpy as np

from trainyard import words
from trainyard.compare.differences import Difference, check_kinds, differences
from trainyard.compare.gate.changed_accounts import Ledgers
from trainyard.compare.metric import values
from trainyard.compare.same_work import compare_jobs
from trainyard.errors import BadInput, WrongRunState
from trainyard.record import Run

_QUESTION = "code"
"""The kind of difference that is asked about where nothing else is said."""
_SHOWN = 6


class Pair(NamedTuple):
    base: Run
    head: Run


class PairedRuns(NamedTuple):
    """`caveats`: what to keep in mind of these pairs."""

    pairs: tuple[Pair, ...]
    caveats: tuple[str, ...]


def paired(base: Sequence[Run], head: Sequence[Run], across: Collection[str] = ()) -> PairedRuns:
    """The first of one with the first of the other, and so on, as they were started. Raises `BadInput` where runs did
    not end well, where one is on both sides, did other work, or where they differ in more than code and `across`."""
    check_kinds(across)
    base, head = (sorted(side, key=lambda run: (run.started, run.id)) for side in (base, head))
    for run in (*base, *head):
        if run.state != "complete":
            raise WrongRunState(
                f"run {run.id} is {run.state}{f': {run.failure}' if run.failure else ''}.", "Leave it out."
            )
    if twice := {run.id for run in base} & {run.id for run in head}:
        raise BadInput(f"run {min(twice)} is on both sides.", "Name runs of base and of head apart.")
    for run in (*base, *head)[1:]:
        _check_alike((*base, *head)[0], run, across)
    caveats: list[str] = []
    if rest := abs(len(base) - len(head)):
        caveats.append(f"{rest} run{'s' if rest > 1 else ''} of {'base' if len(base) > len(head) else 'head'} more.")
    if len({run.provenance.code.get("sha", "") for run in base}) > 1:
        caveats.append("The runs of base are of several revisions.")
    pairs = tuple(Pair(*both) for both in zip(base, head, strict=False))
    if not _interleaved(pairs):
        caveats.append(
            "The runs did not take turns: whatever else changed between them counts as head's, and the error rate "
            "holds only if nothing did. `trainyard gate run` lets them take turns."
        )
    return PairedRuns(pairs, tuple(caveats))


def _check_alike(one: Run, other: Run, across: Collection[str]) -> None:
    if reasons := compare_jobs(one.job, other.job):
        raise BadInput(f"runs {one.id} and {other.id} did different work: {' '.join(reasons)}", "Name runs of one job.")
    found = [each for each in differences(one, other) if each.kind not in (*across, _QUESTION)]
    if found:
        kinds = sorted({each.kind for each in found})
        listed = "; ".join(_said(each) for each in found[:_SHOWN]) + ("; …" if len(found) > _SHOWN else "")
        raise BadInput(
            f"runs {one.id} and {other.id} differ in more than code: {listed}.",
            f"If that is the question, say {' '.join(f'--across {kind}' for kind in kinds)}.",
        )


def _said(one: Difference) -> str:
    return f"{one.name}: {one.was} against {one.now}"


def _interleaved(pairs: Sequence[Pair]) -> bool:
    """Whether each pair had ended before the next began."""
    ends = [(min(pair.base.started, pair.head.started), max(pair.base.started, pair.head.started)) for pair in pairs]
    return all(before[1] <= after[0] for before, after in pairwise(ends))


def worse_by(pairs: Sequence[Pair], metric: str) -> list[float]:
    """Of each pair the logarithm of how many times as bad head was. Raises as `logged`."""
    sign = -1 if words.metric(metric).better == "higher" else 1
    return [sign * (logged(pair.head, metric) - logged(pair.base, metric)) for pair in pairs]


def logged(run: Run, metric: str) -> float:
    """The figure's logarithm. Raises `BadInput` where the run has none, or one that is not above zero."""
    known = values(run)
    if metric not in known:
        listed = ", ".join(known) or "nothing"
        raise BadInput(f"run {run.id} has no {metric}.", f"It has {listed}.")
    if not np.isfinite(known[metric]) or known[metric] <= 0:
        raise BadInput(f"run {run.id}: {metric} is {known[metric]:g}, and no ratio can be made of that.")
    return log(known[metric])


def ledgers(pairs: Sequence[Pair]) -> Ledgers:
    """Of the pairs in which both sides have one of a full step."""
    found = [tuple(_accounts(run) for run in pair) for pair in pairs]
    return [(base, head) for base, head in found if base and head]


def _accounts(run: Run) -> dict[str, float]:
    if not run.ledgers or run.ledgers[-1].scope.partial:
        return {}
    return {str(account): float(ns) for account, ns in run.ledgers[-1].by_account().items()}
