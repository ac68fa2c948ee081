"""Steps or drift? A run of changes in one direction is held against lines and ramps, by the Bayesian information
criterion, over as many points as the noise's memory makes independent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.statistics.rank_statistics import SHORTEST_SIDE

_KNOTS = 14
"""Places tried for each end of a ramp."""
_SHORTEST_RAMP = 10
_MARGIN = 6.0
"""By how much a drift must be the better description: a step is the simpler one (Kass and Raftery 1995: strong)."""


class StepOrDrift(NamedTuple):
    """Of a stretch: `steps` are changes of level; from `begin` to `end` it drifts, where these differ. Places count
    from the stretch's first point. `begins`: the first and last place where the drift may begin."""

    steps: tuple[int, ...]
    begin: int = 0
    end: int = 0
    begins: tuple[int, int] = (0, 0)


def shape(values: NDArray[np.float64], steps: list[int], inflation: float, critical: float) -> StepOrDrift:
    """The best of four descriptions of a stretch (n,) in which `steps`, all in one direction, were found: the steps, a
    line, a line with a step in that direction as strong as `critical` asks, and two levels joined by a ramp."""
    n = values.size
    tame = without_spikes(values)

    def score(cost: float, parameters: int) -> float:
        return n / inflation * np.log(max(cost, 1e-300) / n) + parameters * np.log(n)

    steps = _placed(tame, steps)
    stairs = score(_staircase(tame, steps), 2 * len(steps) + 1)
    told = [(stairs - _MARGIN, StepOrDrift(tuple(steps)))]
    if n >= 2 * _SHORTEST_RAMP:
        rest = _off_line(tame)
        line = float(rest @ rest)
        told.append((score(line, 2), StepOrDrift((), 0, n)))
        gain, at = _step_off_line(rest if tame[steps[0] :].mean() > tame[: steps[0]].mean() else -rest)
        both = score(line - gain, 4)
        # The step must be there beside the line, and the line beside the steps.
        if gain > critical**2 * inflation * (line - gain) / n and both < stairs - critical**2:
            told.append((both, StepOrDrift((at,), 0, n)))
        ramps = _ramps(n)
        costs = _ramp_costs(tame, ramps)
        flattest = int(costs.argmin())
        begin, end = map(int, ramps[flattest])
        near = ramps[costs <= costs[flattest] * np.exp(_PLACE * inflation / n)]
        begins = int(near[:, 0].min()), int(near[:, 0].max())
        told.append((score(float(costs[flattest]), 4), StepOrDrift((), begin, end + 1, begins)))
    return min(told, key=lambda one: one[0])[1]


_PLACE = 7.35
"""Twice the log-likelihood that a change's true place loses to the best one in 95 % of cases: (1 - exp(-x / 2))^2."""


def places(values: NDArray[np.float64], at: int, inflation: float) -> tuple[int, int]:
    """First and last place in a stretch (n,) where its one step, found at `at`, may be: of 95 %."""
    tame = without_spikes(values)
    costs = _two_levels(tame)
    noise = max(float(costs[at - 1]), 0.0) / max(1, tame.size - 3)
    near = 1 + np.flatnonzero(costs <= costs[at - 1] + _PLACE * inflation * noise)
    return (min(int(near[0]), at), max(int(near[-1]), at)) if near.size else (at, at)


def _two_levels(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n - 1,): the squared error of two levels, the first of k + 1 values."""
    n = values.size
    left = np.arange(1, n)
    rest = values - values.mean()
    sums = rest.cumsum()[:-1]
    return (rest @ rest) - sums * sums * (1 / left + 1 / (n - left))


def _placed(values: NDArray[np.float64], steps: list[int]) -> list[int]:
    """Each step where two levels between its neighbours fit best: ranks say that there is one, values better where."""
    bounds = [0, *steps, values.size]
    found: list[int] = []
    for start, at, stop in zip(bounds, bounds[1:], bounds[2:]):
        least, most = min(SHORTEST_SIDE, at - start), max(stop - start - SHORTEST_SIDE, at - start)
        costs = _two_levels(values[start:stop])[least - 1 : most]
        found.append(start + least + int(costs.argmin()))
    return sorted(set(found))


def without_spikes(values: NDArray[np.float64], width: int = 7, far: float = 4.0) -> NDArray[np.float64]:
    """(n,): values further than `far` deviations from the median of `width` around them, brought to that distance."""
    middle = moving_median(values, width)
    spread = 1.4826 * float(np.median(np.abs(values - middle)))
    return np.clip(values, middle - far * spread, middle + far * spread) if spread else values


def moving_median(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """(n,): of `width` values around each, fewer at the ends."""
    if values.size < width:
        return np.full(values.size, np.median(values))
    inner = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    return np.pad(inner, (width // 2, width - 1 - width // 2), "edge")


def _staircase(values: NDArray[np.float64], steps: list[int]) -> float:
    return float(sum(((part - part.mean()) ** 2).sum() for part in np.split(values, steps)))


def _off_line(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,): what a straight line leaves."""
    time = np.arange(values.size) - (values.size - 1) / 2
    rest = values - values.mean()
    return rest - time * (time @ rest) / (time @ time)


def _step_off_line(rest: NDArray[np.float64]) -> tuple[float, int]:
    """By how much the squared error falls with the best step upwards beside the line, and the step's place."""
    n = rest.size
    left = np.arange(1, n)
    moment = left * (n - left) / 2.0  # of the times after a split
    width = left * (n - left) / n - moment**2 * 12 / (n * (n * n - 1.0))
    gain = np.minimum(rest.cumsum()[:-1], 0) ** 2 / np.where(width > 1e-9, width, np.inf)
    gain[: _SHORTEST_RAMP // 2] = gain[n - 1 - _SHORTEST_RAMP // 2 :] = 0
    at = int(gain.argmax())
    return float(gain[at]), at + 1


def _ramps(n: int) -> NDArray[np.int64]:
    """(r, 2): begin and end of the ramps that are tried."""
    knots = np.unique(np.linspace(0, n - 1, _KNOTS).round().astype(int))
    pairs = [(a, b) for i, a in enumerate(knots) for b in knots[i + 1 :] if b - a >= max(_SHORTEST_RAMP, n // 5)]
    return np.array(pairs, dtype=int).reshape(-1, 2)


def _ramp_costs(values: NDArray[np.float64], ramps: NDArray[np.int64]) -> NDArray[np.float64]:
    """(r,): the squared error of a level, a ramp and another level, joined."""
    begin, end = ramps[:, :1], ramps[:, 1:]
    rise = np.clip((np.arange(values.size) - begin) / (end - begin), 0, 1)
    rise = rise - rise.mean(axis=1, keepdims=True)
    rest = values - values.mean()
    return (rest @ rest) - (rise @ rest) ** 2 / (rise * rise).sum(axis=1)
