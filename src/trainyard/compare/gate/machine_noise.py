"""Noise of a machine, measured with pairs of identical runs (A/A): the smallest slowdown that it can detect, and the
false alarms of this gate and of a simple threshold.

A pair is two runs; its log ratio is the logarithm of the metric of one over that of the other. The gate tests after
each pair (a look) and stops as soon as the verdict is clear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, expm1, log1p, sqrt
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from trainyard.compare.gate import sequential_test
from trainyard.compare.gate.pairs import Pair, compute_log_ratios, log_metric
from trainyard.compare.gate.verdict import Rule, Verdict, judge
from trainyard.errors import BadInput
from trainyard.record import Run
from trainyard.store.run_summary import step_walls

Column = npt.NDArray[np.float64]
_RESAMPLED_SERIES = 400
"""Series of pairs that are resampled to estimate the power."""
_RESAMPLES = 5
"""Orders of sizes whose sign patterns are enumerated for the false alarms."""
_REQUIRED_POWER = 0.9
"""Share of slowdowns that must be detected for a slowdown to count as detectable."""
_TRIED_SLOWDOWNS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5)
"""Slowdowns whose power is estimated, as fractions."""
_FIXED_THRESHOLD = 0.05
"""Threshold, as a fraction, of the simple rule that the gate is compared with."""
_MIN_MODE_RUNS = 3
"""Fewest runs in each group of a bimodal set."""
_MIN_SEPARATION = 6.0
"""Ashman's D from which two groups of runs are two modes. The best split of a single normal group of 10 to 40 runs has
about 3, and exceeds 6 in at most 1 % of such groups."""


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Noise of a metric over identical runs, as fractions of the metric. `between_runs`: standard deviation between
    runs, `within_run`: between the steps of a run, `autocorrelation`: of consecutive steps. `drift`: change from the
    first to the last run, `drift_p_value`: its p-value by Kendall's tau; `modes`: the means of two groups of runs, if
    they are bimodal. `false_alarms`: rate of this gate over all signs of pairs of these sizes; `threshold_alarms`: rate
    of a rule that compares two runs with a threshold of 5 %. `power`: slowdown -> (power, mean number of pairs) with
    this noise. `smallest_detected`: the smallest tried slowdown with a power of 90 %, None if there is none."""

    metric: str
    runs: int
    between_runs: float
    within_run: float | None
    autocorrelation: float | None
    drift: float
    drift_p_value: float
    modes: tuple[float, float] | None
    verdict: Verdict
    false_alarms: float
    threshold_alarms: float
    power: dict[str, tuple[float, float]]
    smallest_detected: float | None
    schema: Literal["trainyard/self-check/2"] = "trainyard/self-check/2"


def measure_noise(pairs: Sequence[Pair], metric: str, rule: Rule, seed: int = 0) -> Noise:
    """Measures the noise of a metric with pairs of identical runs. `seed`: of the resampling. Raises `BadInput` for
    fewer than two pairs, or a run that lacks the metric."""
    if len(pairs) < 2:
        raise BadInput(
            f"{len(pairs)} pair is too few to measure noise: at least 2 are needed.", "Set --pairs to 5 or more."
        )
    runs = sorted((run for pair in pairs for run in pair), key=lambda run: run.started)
    logs = np.array([log_metric(run, metric) for run in runs])
    differences = np.array(compute_log_ratios(pairs, metric))
    rng = np.random.default_rng(seed)
    power = {f"{share:g}": _estimate_power(differences, log1p(share), rule, rng) for share in _TRIED_SLOWDOWNS}
    drift, chance = _test_drift(logs)
    return Noise(
        metric=metric, runs=len(runs), between_runs=float(np.std(logs, ddof=1)),
        within_run=_average_known(map(_deviate_within_run, runs)),
        autocorrelation=_average_known(map(_correlate_steps, runs)),
        drift=drift, drift_p_value=chance, modes=_find_modes(logs),
        verdict=judge(metric, differences.tolist(), rule), false_alarms=_false_alarm_rate(differences, rule, rng),
        # Half of the pairs beyond the threshold have the slower run as head.
        threshold_alarms=float(np.mean(np.abs(differences) > log1p(_FIXED_THRESHOLD)) / 2), power=power,
        smallest_detected=next((float(share) for share, (rate, _) in power.items() if rate >= _REQUIRED_POWER), None),
    )  # fmt: skip


def _false_alarm_rate(differences: Column, rule: Rule, rng: np.random.Generator) -> float:
    """The gate's rate of false alarms: the mean over `_RESAMPLES` sequences of pair sizes, drawn from `differences`
    (log ratios). For each sequence the test enumerates all signs, which are equally likely without a change."""
    drawn_sizes = np.abs(rng.choice(differences, (_RESAMPLES, rule.max_pairs)))
    # The last look of each sequence has the share of sign patterns that raised an alarm by then.
    last_looks = [list(sequential_test.look_after_each(sizes, rule.alpha, rule.max_pairs))[-1] for sizes in drawn_sizes]
    return float(np.mean([look.alarms for look in last_looks]))


def _estimate_power(differences: Column, effect: float, rule: Rule, rng: np.random.Generator) -> tuple[float, float]:
    """(power, mean number of pairs) of the gate for series of pairs resampled from `differences` (log ratios) with
    random signs and slower by `effect` (a log ratio). The boundaries are those of one random order of sizes, on which
    they depend little."""
    shape = (_RESAMPLED_SERIES, rule.max_pairs)
    noise = rng.choice(differences, shape) * rng.choice((-1.0, 1.0), shape)
    drawn_series = noise + effect - log1p(rule.negligible)  # "worse" must exceed the negligible change
    is_open, pairs_run = np.ones(_RESAMPLED_SERIES, bool), 0  # series without an alarm so far; pairs of all series
    for count, look in enumerate(
        sequential_test.look_after_each(rng.random(rule.max_pairs), rule.alpha, rule.max_pairs), 1
    ):
        pairs_run += int(is_open.sum())
        if look.critical_sum is None:
            continue
        for row in np.flatnonzero(is_open):
            drawn_differences = drawn_series[row, :count]
            doubled_ranks = sequential_test.double_ranks(np.abs(drawn_differences))
            is_open[row] = doubled_ranks[drawn_differences > 0].sum() < look.critical_sum
    return 1 - float(is_open.mean()), pairs_run / _RESAMPLED_SERIES


def _log_step_times(run: Run) -> Column:
    """Logarithms of the wall time (ns) of each measured step of a run."""
    return np.log(np.array([wall for wall in step_walls(run.measured()) if wall > 0], float))


def _deviate_within_run(run: Run) -> float | None:
    """Standard deviation of the logarithms of a run's step times; None for fewer than three steps."""
    walls = _log_step_times(run)
    return float(np.std(walls, ddof=1)) if len(walls) > 2 else None


def _correlate_steps(run: Run) -> float | None:
    """Correlation of the step times of a run with those of the next step; None if it cannot be estimated."""
    walls = _log_step_times(run)
    if len(walls) < 4 or not np.std(walls):
        return None
    return float(np.corrcoef(walls[:-1], walls[1:])[0, 1])


def _average_known(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known and finite; None without any."""
    known = [value for value in values if value is not None and np.isfinite(value)]
    return sum(known) / len(known) if known else None


def _test_drift(log_values: Column) -> tuple[float, float]:
    """(relative drift from the first to the last run, p-value): the median slope of all pairs (Sen 1968, JASA 63),
    and the normal approximation of Kendall's tau. `log_values`: logarithms of the runs' metric in the order of their
    start."""
    earlier_index, later_index = np.triu_indices(len(log_values), 1)
    slopes = (log_values[later_index] - log_values[earlier_index]) / (later_index - earlier_index)
    n = len(log_values)
    score = float(np.sum(np.sign(log_values[later_index] - log_values[earlier_index])))
    # Kendall's score of independent values has the mean 0 and this variance.
    score_variance = n * (n - 1) * (2 * n + 5) / 18
    z = (abs(score) - 1) / sqrt(score_variance) if score else 0.0  # with the correction for continuity
    return expm1(float(np.median(slopes)) * (n - 1)), float(min(1.0, _two_sided_normal(max(0.0, z))))


def _two_sided_normal(z: float) -> float:
    """Probability that a standard normal deviate is at least `z` from 0."""
    return 2 * NormalDist().cdf(-z)


def _find_modes(log_values: Column) -> tuple[float, float] | None:
    """Means of the two groups, of at least three runs each, with the largest separation relative to their width (Ashman
    et al. 1994, Astronomical Journal 108); None if the runs are not bimodal. `log_values`: logarithms of the runs'
    metric."""
    ordered = np.sort(log_values)
    best_separation, split_index = 0.0, 0
    for index in range(_MIN_MODE_RUNS, len(ordered) - _MIN_MODE_RUNS + 1):
        low, high = ordered[:index], ordered[index:]
        # Ashman's D is the distance of the means over this width, the root mean square of the two deviations.
        width = sqrt((np.var(low, ddof=1) + np.var(high, ddof=1)) / 2)
        separation = (high.mean() - low.mean()) / width if width else 0.0
        best_separation, split_index = max((best_separation, split_index), (float(separation), index))
    if best_separation < _MIN_SEPARATION:
        return None
    return exp(float(ordered[:split_index].mean())), exp(float(ordered[split_index:].mean()))
