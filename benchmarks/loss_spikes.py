"""False alarms and detected spikes of the loss-spike rule on simulated training losses.

`python -m benchmarks.loss_spikes [STEPS]`. Losses follow a power law of the step with proportional noise: normal,
heavy-tailed (Student's t with 4 degrees of freedom), correlated from step to step (0.5), or normal with batches from
two sources at random, one of which has higher losses by 10 standard deviations. `fresh`: from the first step on, where
the loss falls fastest. Seeds are fixed.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from trainyard.recipe import Recipe
from trainyard.train.step.step_guard import StepGuard

NOISE = 0.02
"""Standard deviation of a loss relative to its mean."""
F64 = NDArray[np.float64]


def _normal(generator: np.random.Generator, steps: int) -> F64:
    return generator.standard_normal(steps)


def _heavy_tailed(generator: np.random.Generator, steps: int) -> F64:
    return generator.standard_t(4, steps) / np.sqrt(2.0)  # the variance of t with 4 degrees of freedom is 2


def _correlated(generator: np.random.Generator, steps: int) -> F64:
    noise = generator.standard_normal(steps)
    for step in range(1, steps):
        noise[step] = 0.5 * noise[step - 1] + np.sqrt(0.75) * noise[step]
    return noise


def _two_sources(generator: np.random.Generator, steps: int) -> F64:
    return generator.standard_normal(steps) + 10.0 * generator.integers(0, 2, steps)


KINDS: Mapping[str, tuple[Callable[[np.random.Generator, int], F64], int]] = {
    "normal": (_normal, 10_000),
    "normal, fresh": (_normal, 0),
    "correlated": (_correlated, 10_000),
    "heavy-tailed": (_heavy_tailed, 10_000),
    "two sources": (_two_sources, 10_000),
}
"""Name -> (the noise, steps before the first)."""


def losses(kind: str, steps: int, seed: int) -> F64:
    """A series of losses without a spike."""
    noise, begin = KINDS[kind]
    mean = 2.0 + 9.0 * (begin + np.arange(1, steps + 1)) ** -0.3
    return mean * (1.0 + NOISE * noise(np.random.default_rng(seed), steps))


def false_alarms(kind: str, steps: int, seed: int, threshold: float) -> int:
    """Number of losses of a series without spikes that the guard takes for spikes. They are skipped, as in a run."""
    guard = StepGuard(_recipe(threshold))
    return sum(guard.judge(float(loss), is_norm_finite=True) is not None for loss in losses(kind, steps, seed))


def detected_share(deviations: float, trials: int, seed: int, threshold: float) -> float:
    """The share of spikes, `deviations` standard deviations high, that the guard detects in normal noise."""
    window = _recipe(threshold).loss_spike_window
    detected = 0
    for trial in range(trials):
        series = losses("normal", window, seed + trial)
        guard = StepGuard(_recipe(threshold))
        guard.recent = deque(map(float, series), maxlen=window)
        loss = float(series.mean() * (1 + deviations * NOISE))
        detected += guard.judge(loss, is_norm_finite=True) is not None
    return detected / trials


def _recipe(threshold: float) -> Recipe:
    return Recipe(tokens_per_step=1, on_loss_spike="skip", loss_spike_threshold=threshold, max_consecutive_skips=10_000)


def main(steps: int) -> None:
    """Print the table of false alarms and that of detected spikes."""
    thresholds = (4.0, 5.0, 6.0, 8.0)
    print(f"False alarms in {steps:,} steps, by loss_spike_threshold")
    print(f"{'':16}" + "".join(f"{threshold:>8g}" for threshold in thresholds))
    for kind in KINDS:
        counts = [false_alarms(kind, steps, 1, threshold) for threshold in thresholds]
        print(f"{kind:16}" + "".join(f"{count:>8}" for count in counts))
    default = Recipe(tokens_per_step=1).loss_spike_threshold
    print(f"Detected spikes in normal noise, by their height in standard deviations, with threshold {default:g}")
    for height in (5, 6, 7, 8):
        print(f"{height:<16}{detected_share(height, 500, 1, default):>8.1%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
