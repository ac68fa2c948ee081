"""Pairs of runs of base and head. Runs that cannot be compared are rejected here.

Base and head are the two sides of a comparison, such as two commits; the n-th run of one is paired with the n-th of the
other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from math import log
from typing import NamedTuple

import numpy as np

from trainyard import words
from trainyard.compare.differences import Difference, check_kinds, find_differences
from trainyard.compare.gate.changed_accounts import PairedLedgers
from trainyard.compare.metric import compute_metrics
from trainyard.compare.same_work import compare_jobs
from trainyard.errors import BadInput, WrongRunState
from trainyard.record import Run
from trainyard.store.measurement_warnings import loaded_runs_caveats

_TESTED_KIND = "code"
"""The kind of difference that is compared by default."""
_MAX_LISTED_DIFFERENCES = 6


class Pair(NamedTuple):
    base: Run
    head: Run


class PairedRuns(NamedTuple):
    """`caveats`: sentences about the limits of these pairs."""

    pairs: tuple[Pair, ...]
    caveats: tuple[str, ...]


def pair_runs(base: Sequence[Run], head: Sequence[Run], across: Collection[str] = ()) -> PairedRuns:
    """Pairs the runs of base and head in order of their start. `across`: kinds of difference that they may have in
    addition to code. Raises `WrongRunState` for a run that is not complete, `BadInput` if a run is on both sides, runs
    did different work, or they differ in more."""
    check_kinds(across)
    base, head = (sorted(side, key=lambda run: (run.started, run.id)) for side in (base, head))
    for run in (*base, *head):
        if run.state != "complete":
            raise WrongRunState(
                f"run {run.id} is {run.state}{f': {run.failure}' if run.failure else ''}.", "Leave it out."
            )
    if both_sides := {run.id for run in base} & {run.id for run in head}:
        raise BadInput(f"run {min(both_sides)} is on both sides.", "Give different runs for base and head.")
    first_run, *other_runs = (*base, *head)
    for run in other_runs:
        _check_comparable(first_run, run, across)
    caveats: list[str] = []
    if surplus_runs := abs(len(base) - len(head)):
        larger = "base" if len(base) > len(head) else "head"
        caveats.append(f"{larger} has {surplus_runs} run{'s' if surplus_runs > 1 else ''} more, left out.")
    if len({run.provenance.code.get("sha", "") for run in base}) > 1:
        caveats.append("The runs of base have several revisions.")
    caveats += loaded_runs_caveats(base, head)
    pairs = tuple(Pair(*runs) for runs in zip(base, head, strict=False))
    if not _are_interleaved(pairs):
        caveats.append(
            "The runs were not interleaved: any other change between them is attributed to head, and the error rate "
            "holds only if there was none. `trainyard gate run` interleaves them."
        )
    return PairedRuns(pairs, tuple(caveats))


def _check_comparable(first: Run, other: Run, across: Collection[str]) -> None:
    """Raises `BadInput` if the two runs did different work, or differ in more than the code and the kinds in
    `across`."""
    if reasons := compare_jobs(first.job, other.job):
        raise BadInput(
            f"runs {first.id} and {other.id} did different work: {' '.join(reasons)}", "Give runs of the same job."
        )
    unexpected = [item for item in find_differences(first, other) if item.kind not in (*across, _TESTED_KIND)]
    if unexpected:
        kinds = sorted({item.kind for item in unexpected})
        listed = "; ".join(map(_show_difference, unexpected[:_MAX_LISTED_DIFFERENCES])) + (
            "; …" if len(unexpected) > _MAX_LISTED_DIFFERENCES else ""
        )
        raise BadInput(
            f"runs {first.id} and {other.id} differ in more than code: {listed}.",
            f"To compare across that difference, add {' '.join(f'--across {kind}' for kind in kinds)}.",
        )


def _show_difference(difference: Difference) -> str:
    return f"{difference.name}: {difference.before} against {difference.after}"


def _are_interleaved(pairs: Sequence[Pair]) -> bool:
    """Whether both runs of each pair started before any run of the next pair."""
    start_ranges = [
        (min(pair.base.started, pair.head.started), max(pair.base.started, pair.head.started)) for pair in pairs
    ]
    return all(before[1] <= after[0] for before, after in pairwise(start_ranges))


def compute_log_ratios(pairs: Sequence[Pair], metric: str) -> list[float]:
    """Log ratio of head to base for each pair, with the sign such that positive is worse. Raises what `log_metric`
    does."""
    sign = -1 if words.metric(metric).better == "higher" else 1
    return [sign * (log_metric(pair.head, metric) - log_metric(pair.base, metric)) for pair in pairs]


def log_metric(run: Run, metric: str) -> float:
    """Logarithm of a run's metric. Raises `BadInput` if the run lacks it or it is not positive."""
    value_of_metric = compute_metrics(run)
    if metric not in value_of_metric:
        listed = ", ".join(value_of_metric) or "nothing"
        raise BadInput(f"run {run.id} has no {metric}.", f"Its metrics: {listed}.")
    if not np.isfinite(value_of_metric[metric]) or value_of_metric[metric] <= 0:
        raise BadInput(
            f"run {run.id}: {metric} is {value_of_metric[metric]:g}, but a ratio needs a positive, finite number."
        )
    return log(value_of_metric[metric])


def pair_ledgers(pairs: Sequence[Pair]) -> PairedLedgers:
    """(base, head) of each pair in which both runs have a mean ledger over full steps: account -> ns per step."""
    accounts = [tuple(_account_times(run) for run in pair) for pair in pairs]
    return [(base, head) for base, head in accounts if base and head]


def _account_times(run: Run) -> dict[str, float]:
    if not run.ledgers or run.ledgers[-1].scope.partial:
        return {}
    return {str(account): float(ns) for account, ns in run.ledgers[-1].by_account().items()}
