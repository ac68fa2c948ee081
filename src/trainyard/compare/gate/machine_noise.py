"""What a machine's own noise is, from pairs of runs that are alike: how small a slowdown it can show, and what other
rules would say of nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, expm1, log1p, sqrt
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from trainyard.compare.gate import sequential_test
from trainyard.compare.gate.pairs import Pair, logged, worse_by
from trainyard.compare.gate.verdict import Rule, Verdict, judge
from trainyard.errors import BadInput
from trainyard.record import Run
from trainyard.store.run_summary import step_walls

Column = npt.NDArray[np.float64]
_DRAWS = 400
_ORDERS = 5
_SOUGHT = 0.9
_EFFECTS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5)
_THRESHOLD = 0.05
_SPLIT = 3.0
"""Ashman's D from which two groups of runs are two modes."""


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Of runs that are alike; shares of the metric. `between`: standard deviation of runs, `within` of a run's steps,
    `carried`: correlation of a step with the next. `drift`: from the first run to the last, and its chance by
    Kendall's tau; `modes`: the middles of two groups of runs where there are two. `false_alarms`: of this gate
    over all signs that pairs of these sizes could have had; `threshold_alarms`: of a rule that compares one run each
    with 5 %. `seen`: slowdown -> (share of cases in which it would be found, mean pairs), on noise like this.
    `smallest`: the least that nine cases in ten would show; None: none that was tried."""

    metric: str
    runs: int
    between: float
    within: float | None
    carried: float | None
    drift: float
    drift_chance: float
    modes: tuple[float, float] | None
    verdict: Verdict
    false_alarms: float
    threshold_alarms: float
    seen: dict[str, tuple[float, float]]
    smallest: float | None
    schema: Literal["trainyard/self-check/1"] = "trainyard/self-check/1"


def noise(pairs: Sequence[Pair], metric: str, rule: Rule, seed: int = 0) -> Noise:
    """Raises `BadInput` for fewer than two pairs, or a run without such a figure."""
    if len(pairs) < 2:
        raise BadInput(f"{len(pairs)} pair says nothing of noise.", "Ask for five pairs or more: --pairs.")
    runs = sorted((run for pair in pairs for run in pair), key=lambda run: run.started)
    logs = np.array([logged(run, metric) for run in runs])
    differences = np.array(worse_by(pairs, metric))
    rng = np.random.default_rng(seed)
    seen = {f"{share:g}": _power(differences, log1p(share), rule, rng) for share in _EFFECTS}
    drift, chance = _drift(logs)
    return Noise(
        metric=metric, runs=len(runs), between=float(np.std(logs, ddof=1)), within=_mean(map(_within, runs)),
        carried=_mean(map(_carried, runs)), drift=drift, drift_chance=chance, modes=_modes(logs),
        verdict=judge(metric, differences.tolist(), rule), false_alarms=_false_alarms(differences, rule, rng),
        threshold_alarms=float(np.mean(np.abs(differences) > log1p(_THRESHOLD)) / 2), seen=seen,
        smallest=next((float(share) for share, (found, _) in seen.items() if found >= _SOUGHT), None),
    )  # fmt: skip


def _false_alarms(differences: Column, rule: Rule, rng: np.random.Generator) -> float:
    """The share of all patterns of signs that would end in an alarm, counted, of pairs of these sizes."""
    drawn = np.abs(rng.choice(differences, (_ORDERS, rule.cap)))
    return float(np.mean([list(sequential_test.looks(sizes, rule.alpha, rule.cap))[-1].alarms for sizes in drawn]))


def _power(differences: Column, effect: float, rule: Rule, rng: np.random.Generator) -> tuple[float, float]:
    """Pairs like these, drawn anew with signs by lot, and slower by `effect`: how often that is found, and after how
    many pairs it is known. The boundaries are those of sizes in some order, which they depend on little."""
    shape = (_DRAWS, rule.cap)
    drawn = rng.choice(differences, shape) * rng.choice((-1.0, 1.0), shape) + effect - log1p(rule.negligible)
    open_, pairs = np.ones(_DRAWS, bool), 0
    for seen, look in enumerate(sequential_test.looks(rng.random(rule.cap), rule.alpha, rule.cap), 1):
        pairs += int(open_.sum())
        if look.least is None:
            continue
        for at in np.flatnonzero(open_):
            some = drawn[at, :seen]
            open_[at] = sequential_test.doubled_ranks(np.abs(some))[some > 0].sum() < look.least
    return 1 - float(open_.mean()), pairs / _DRAWS


def _walls(run: Run) -> Column:
    return np.log(np.array([wall for wall in step_walls(run.measured()) if wall > 0], float))


def _within(run: Run) -> float | None:
    walls = _walls(run)
    return float(np.std(walls, ddof=1)) if len(walls) > 2 else None


def _carried(run: Run) -> float | None:
    walls = _walls(run)
    if len(walls) < 4 or not np.std(walls):
        return None
    return float(np.corrcoef(walls[:-1], walls[1:])[0, 1])


def _mean(some: Iterable[float | None]) -> float | None:
    known = [one for one in some if one is not None and np.isfinite(one)]
    return sum(known) / len(known) if known else None


def _drift(logs: Column) -> tuple[float, float]:
    """By the median slope of any two (Sen 1968, JASA 63), and Kendall's tau's normal approximation."""
    one, other = np.triu_indices(len(logs), 1)
    slopes = (logs[other] - logs[one]) / (other - one)
    n = len(logs)
    score = float(np.sum(np.sign(logs[other] - logs[one])))
    z = (abs(score) - 1) / sqrt(n * (n - 1) * (2 * n + 5) / 18) if score else 0.0
    return expm1(float(np.median(slopes)) * (n - 1)), float(min(1.0, _two_tails(max(0.0, z))))


def _two_tails(z: float) -> float:
    return 2 * NormalDist().cdf(-z)


def _modes(logs: Column) -> tuple[float, float] | None:
    """The two groups that lie furthest apart for their width (Ashman et al. 1994, Astronomical Journal 108), of at
    least three runs each."""
    ordered = np.sort(logs)
    best, split = 0.0, 0
    for at in range(3, len(ordered) - 2):
        low, high = ordered[:at], ordered[at:]
        wide = sqrt((np.var(low, ddof=1) + np.var(high, ddof=1)) / 2)
        apart = (high.mean() - low.mean()) / wide if wide else 0.0
        best, split = max((best, split), (float(apart), at))
    if best < 2 * _SPLIT:  # a cut through one group alone comes to about half of this
        return None
    return exp(float(ordered[:split].mean())), exp(float(ordered[split:].mean()))
