"""Spikes of a curve of positive values by step, such as a loss or a gradient norm.

A spike begins at a value that rises above the larger of the two values before it by more than `THRESHOLD` robust
standard deviations of a step's change: the range of the middle 80 % of the last `WINDOW` changes, divided by 2.563.
It also rises by more than 1.5 times the largest of these changes, so that a spike within `WINDOW` steps of another is
listed only if it is larger. Values are compared by their logarithm. The spike lasts while values are as far above those
before its beginning.

False alarms on simulated curves, on which the rule was chosen (tests/numerics/triage/test_find_spikes.py): at most
one in 10,000 steps of a decaying loss with normal noise, of a random walk, of noise with Laplace's distribution, and
of two levels of loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import exp, isfinite, log
from statistics import median, quantiles

from msgspec.structs import replace

from trainyard.numerics.triage.triage_result import Curve, Spike

THRESHOLD = 8.0
WINDOW = 32
LEAST_VALUES = 16
"""Values before the first one that is judged."""
_LEAST_DEVIATION = 0.01
"""The least robust standard deviation, of the logarithm: changes of less than 8 % are not spikes."""
_RANGE_OF_NORMAL = 2.563
"""The range of the middle 80 % of a normal distribution, in standard deviations."""
_RATIO_OF_RISES = 1.5
"""A spike rises by so many times the largest rise in the window: batches of two sources have two levels of loss."""


def find_spikes(curve: Curve, steps: Sequence[int], values: Sequence[float | None]) -> tuple[Spike, ...]:
    """The spikes of a curve: `values[i]` at `steps[i]`, None if unknown or not finite. Values that are not positive and
    finite are left out, and end a spike."""
    spikes: list[Spike] = []
    logarithms: list[float] = []
    before_spike: Sequence[float] = ()
    for step, value in zip(steps, values, strict=True):
        if value is None or not isfinite(value) or value <= 0:
            before_spike = ()
            continue
        at = log(value)
        if before_spike and (score := _score(at, before_spike)) > THRESHOLD:
            spikes[-1] = _extended(spikes[-1], step, value, score)
        else:
            window = logarithms[-WINDOW - 1 :]
            before_spike = ()
            if len(window) >= LEAST_VALUES and (score := _score(at, window)) > THRESHOLD:
                ratio = exp(min(at - median(window), 700.0))
                spikes.append(Spike(curve=curve, step=step, last_step=step, value=value, ratio=ratio, score=score))
                before_spike = window
        logarithms.append(at)
    return tuple(spikes)


def _score(at: float, window: Sequence[float]) -> float:
    """Robust standard deviations of a step's change by which a logarithm is above the last two of the window."""
    changes = [after - before for before, after in pairwise(window)]
    deciles = quantiles(changes, n=10, method="inclusive")
    largest_known = _RATIO_OF_RISES * max(changes) / THRESHOLD
    deviation = max((deciles[-1] - deciles[0]) / _RANGE_OF_NORMAL, _LEAST_DEVIATION, largest_known)
    return (at - max(window[-2:])) / deviation


def _extended(spike: Spike, step: int, value: float, score: float) -> Spike:
    """A spike that includes a further step; its value is the largest."""
    if value <= spike.value:
        return replace(spike, last_step=step)
    growth = exp(min(log(value) - log(spike.value), 700.0))
    ratio = min(spike.ratio * growth, 1e300)
    return replace(spike, last_step=step, value=value, ratio=ratio, score=score)
