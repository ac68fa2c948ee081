"""Loss spikes: losses far above the recent ones.

The window of 128 losses, half of which must be known, and the threshold of 6 standard deviations are those of OLMo-core
(github.com/allenai/OLMo-core, `SkipStepOptimizer`). In place of mean and standard deviation, which a few outliers
shift, this uses the median and the interquartile range. The median absolute deviation vanishes if batches have two
levels of loss, such as those of two sources (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles

DEVIATIONS_PER_RANGE = 0.7413
"""Standard deviation of normal noise over its interquartile range."""
LEAST_DEVIATION = 0.01
"""Smallest deviation that losses are judged by, relative to their median. Without it, nearly constant losses would
make a spike of rounding errors."""


def spike_score(loss: float, recent: Sequence[float]) -> float:
    """The robust standard deviations by which `loss` is above the median of `recent`, at least two losses."""
    low, middle, high = quantiles(recent, n=4, method="inclusive")
    deviation = DEVIATIONS_PER_RANGE * (high - low)
    return (loss - middle) / max(deviation, LEAST_DEVIATION * abs(middle), 1e-12)


def has_enough(recent: Sequence[float], window: int) -> bool:
    """Whether half of the window is known, so that a loss can be judged."""
    return 2 * len(recent) >= window
