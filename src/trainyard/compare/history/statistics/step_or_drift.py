"""Steps or drift: compares a sequence of changes in one direction with lines and ramps by the Bayesian information
criterion, with the effective number of independent points.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.statistics.levels import DEVIATION_PER_MAD
from trainyard.compare.history.statistics.rank_statistics import SHORTEST_SIDE

_RAMP_POSITIONS = 14
"""Positions tried for each end of a ramp."""
_LEAST_COST = 1e-300
"""Lower limit of a squared error, to avoid the logarithm of 0."""
_LEAST_WIDTH = 1e-9
"""Squared norm below which a step cannot be distinguished from a line."""
_SHORTEST_RAMP = 10
"""Smallest number of points of a ramp."""
_BIC_MARGIN = 6.0
"""By how much the BIC of a drift must be lower than that of steps, the simpler description (Kass and Raftery 1995:
strong evidence)."""


class StepOrDrift(NamedTuple):
    """Description of an interval; positions are counted from its first point. `steps`: changes of level; `begin`,
    `end`: extent of a drift, if they differ; `begins`: the first and last position at which the drift may begin."""

    steps: tuple[int, ...]
    begin: int = 0
    end: int = 0
    begins: tuple[int, int] = (0, 0)


def choose_shape(
    values: NDArray[np.float64], steps: list[int], variance_inflation: float, critical: float
) -> StepOrDrift:
    """The best of four descriptions of an interval (n,) with detected `steps` (first points of new levels), all in one
    direction: the steps, a line, a line with a step in that direction of at least `critical` strength, and two levels
    joined by a ramp. `variance_inflation`: divides n into the effective number of points."""
    n = values.size
    clipped = clip_spikes(values)  # outliers are limited, so that they do not decide the shape

    def bic(cost: float, parameters: int) -> float:
        """Bayesian information criterion of a fit with the squared error `cost` and that many fitted parameters; the
        least is best."""
        return n / variance_inflation * np.log(max(cost, _LEAST_COST) / n) + parameters * np.log(n)

    steps = _refine_steps(clipped, steps)
    steps_score = bic(_fit_steps(clipped, steps), parameters=2 * len(steps) + 1)
    candidates = [(steps_score - _BIC_MARGIN, StepOrDrift(tuple(steps)))]
    if n >= 2 * _SHORTEST_RAMP:
        residuals = _subtract_line(clipped)
        line_cost = float(residuals @ residuals)
        candidates.append((bic(line_cost, parameters=2), StepOrDrift(steps=(), begin=0, end=n)))
        is_rise = clipped[steps[0] :].mean() > clipped[: steps[0]].mean()
        gain, at = _fit_step_on_line(residuals if is_rise else -residuals)  # reduction of the squared error, position
        step_on_line_score = bic(line_cost - gain, parameters=4)
        # The step must be significant in addition to the line, and the line in addition to the steps.
        if (
            gain > critical**2 * variance_inflation * (line_cost - gain) / n
            and step_on_line_score < steps_score - critical**2
        ):
            candidates.append((step_on_line_score, StepOrDrift(steps=(at,), begin=0, end=n)))
        ramps = _list_ramps(n)
        costs = _fit_ramps(clipped, ramps)
        flattest = int(costs.argmin())
        begin, end = map(int, ramps[flattest])
        # Ramps that a likelihood ratio test does not reject.
        likely_ramps = ramps[costs <= costs[flattest] * np.exp(_POSITION_QUANTILE * variance_inflation / n)]
        begins = int(likely_ramps[:, 0].min()), int(likely_ramps[:, 0].max())
        candidates.append(
            (bic(float(costs[flattest]), parameters=4), StepOrDrift(steps=(), begin=begin, end=end + 1, begins=begins))
        )
    return min(candidates, key=lambda candidate: candidate[0])[1]


_POSITION_QUANTILE = 7.35
"""95 % quantile of twice the log-likelihood ratio of the best position to the true one: (1 - exp(-x / 2))^2 = 0.95."""


def locate_step(values: NDArray[np.float64], at: int, variance_inflation: float) -> tuple[int, int]:
    """95 % interval (first, last) of the position of the single step in an interval (n,), detected at `at`.
    `variance_inflation`: as in `estimate_variance_inflation`."""
    clipped = clip_spikes(values)
    costs = _fit_two_levels(clipped)  # entry k: for a step at k + 1
    noise_variance = max(float(costs[at - 1]), 0.0) / max(1, clipped.size - 3)
    likely_positions = 1 + np.flatnonzero(
        costs <= costs[at - 1] + _POSITION_QUANTILE * variance_inflation * noise_variance
    )
    return (
        (min(int(likely_positions[0]), at), max(int(likely_positions[-1]), at)) if likely_positions.size else (at, at)
    )


def _fit_two_levels(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared error (n - 1,) of two levels: entry k is that of the first k + 1 values and the rest."""
    n = values.size
    left_count = np.arange(1, n)
    residuals = values - values.mean()
    sums = residuals.cumsum()[:-1]
    return (residuals @ residuals) - sums * sums * (1 / left_count + 1 / (n - left_count))


def _refine_steps(values: NDArray[np.float64], steps: list[int]) -> list[int]:
    """Move each step to where two levels between its neighbours fit best: ranks are better at detecting a step, values
    at locating it."""
    bounds = [0, *steps, values.size]
    refined: list[int] = []
    for start, at, stop in zip(bounds, bounds[1:], bounds[2:]):
        first, last = min(SHORTEST_SIDE, at - start), max(stop - start - SHORTEST_SIDE, at - start)
        costs = _fit_two_levels(values[start:stop])[first - 1 : last]
        refined.append(start + first + int(costs.argmin()))
    return sorted(set(refined))


def clip_spikes(values: NDArray[np.float64], width: int = 7, max_deviations: float = 4.0) -> NDArray[np.float64]:
    """Values (n,), clipped to `max_deviations` standard deviations (from the MAD) from the moving median of `width`
    points."""
    moving_median = smooth_by_median(values, width)
    deviation = DEVIATION_PER_MAD * float(np.median(np.abs(values - moving_median)))
    return (
        np.clip(values, moving_median - max_deviations * deviation, moving_median + max_deviations * deviation)
        if deviation
        else values
    )


def smooth_by_median(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Moving median (n,) of `width` values; constant at the ends."""
    if values.size < width:
        return np.full(values.size, np.median(values))
    inner = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    return np.pad(inner, (width // 2, width - 1 - width // 2), "edge")


def _fit_steps(values: NDArray[np.float64], steps: list[int]) -> float:
    """Squared error of the values from the means of the parts that `steps` (the first index of each part but the first)
    divides them into."""
    return float(sum(((part - part.mean()) ** 2).sum() for part in np.split(values, steps)))


def _subtract_line(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Residuals (n,) of a straight line."""
    time = np.arange(values.size) - (values.size - 1) / 2
    rest = values - values.mean()
    return rest - time * (time @ rest) / (time @ time)


def _fit_step_on_line(residuals: NDArray[np.float64]) -> tuple[float, int]:
    """(gain, position): reduction of the squared error of `residuals` (n,) from a fitted line by the best upward step
    in addition to it, and the first point after that step. No step is tried near the ends."""
    # Entry k of the arrays (n - 1,): the step function that is 0 for the first k + 1 points and 1 for the others, of
    # which only the part orthogonal to the line's mean and slope can reduce the error.
    n = residuals.size
    left_count = np.arange(1, n)
    sum_of_centred_times = left_count * (n - left_count) / 2.0  # after the step
    # The sum of all squared centred times is n (n^2 - 1) / 12.
    squared_norm = left_count * (n - left_count) / n - sum_of_centred_times**2 * 12 / (n * (n * n - 1.0))
    gain = np.minimum(residuals.cumsum()[:-1], 0) ** 2 / np.where(squared_norm > _LEAST_WIDTH, squared_norm, np.inf)
    gain[: _SHORTEST_RAMP // 2] = gain[n - 1 - _SHORTEST_RAMP // 2 :] = 0
    at = int(gain.argmax())
    return float(gain[at]), at + 1


def _list_ramps(n: int) -> NDArray[np.int64]:
    """Begin and end (r, 2) of the ramps to try in a series of n points: indices on a grid."""
    knots = np.unique(np.linspace(0, n - 1, _RAMP_POSITIONS).round().astype(int))
    pairs = [(a, b) for i, a in enumerate(knots) for b in knots[i + 1 :] if b - a >= max(_SHORTEST_RAMP, n // 5)]
    return np.array(pairs, dtype=int).reshape(-1, 2)


def _fit_ramps(values: NDArray[np.float64], ramps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Squared error (r,) of each of `ramps` (r, 2): a level, a ramp from its begin to its end, and another level,
    joined."""
    begin, end = ramps[:, :1], ramps[:, 1:]
    rise = np.clip((np.arange(values.size) - begin) / (end - begin), 0, 1)
    rise = rise - rise.mean(axis=1, keepdims=True)
    residuals = values - values.mean()
    return (residuals @ residuals) - (rise @ residuals) ** 2 / (rise * rise).sum(axis=1)
