"""False-alarm rate and power of change detection: `python -m validation.history_noise [SCALE]`.

Seeded; SCALE multiplies the number of series.
Real noise comes from the public data next to the checkout, if present: step times over commits and the change-point
series, each permuted, which removes any changes in them.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from math import exp, lgamma, log
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.detect_changes import detect
from trainyard.compare.history.online_detection import OnlineDetector
from trainyard.compare.history.series_changes import DetectedChanges
from validation.history_null import autocorrelated

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("TRAINYARD_PUBLIC_DATA", ROOT.parent / "shared" / "data"))
POINTS = 200
Series = NDArray[np.float64]
Draw = Callable[[np.random.Generator], Series]


class Rate(NamedTuple):
    """`hits` of `trials`, with exact 95 % bounds (Clopper and Pearson)."""

    hits: int
    trials: int

    @property
    def low(self) -> float:
        return 0.0 if self.hits == 0 else 1 - Rate(self.trials - self.hits, self.trials).high

    @property
    def high(self) -> float:
        """The rate at which at most `hits` have a probability of 2.5 %."""
        if self.hits == self.trials:
            return 1.0
        below, above = self.hits / self.trials, 1.0
        for _ in range(60):
            middle = (below + above) / 2
            below, above = (middle, above) if _at_most(self.hits, self.trials, middle) > 0.025 else (below, middle)
        return above

    def __str__(self) -> str:
        return f"{100 * self.hits / self.trials:6.2f} % ({100 * self.low:.2f} to {100 * self.high:.2f})"


def _at_most(hits: int, trials: int, share: float) -> float:
    whole = lgamma(trials + 1)
    return sum(
        exp(whole - lgamma(k + 1) - lgamma(trials - k + 1) + k * log(share) + (trials - k) * log(1 - share))
        for k in range(hits + 1)
    )


def two_modes(rng: np.random.Generator, share: float, n: int = POINTS) -> Series:
    return rng.standard_normal(n) + 8 * (rng.random(n) < share)


def with_spikes(rng: np.random.Generator) -> Series:
    return rng.standard_normal(POINTS) + 30 * (rng.random(POINTS) < 0.02)


NULLS: dict[str, Draw] = {
    "normal": lambda rng: rng.standard_normal(POINTS),
    "two modes, half and half": lambda rng: two_modes(rng, 0.5),
    "two modes, one in ten": lambda rng: two_modes(rng, 0.1),
    "heavy tails (t, 2 degrees)": lambda rng: rng.standard_t(2, POINTS),
    "skewed (log-normal)": lambda rng: rng.lognormal(0, 1, POINTS),
    "spikes, one in fifty": with_spikes,
    "coarse (five values)": lambda rng: np.clip(np.round(rng.standard_normal(POINTS)), -2, 2),
    "autocorrelation 0.3": lambda rng: autocorrelated(rng, POINTS, 0.3),
    "autocorrelation 0.5": lambda rng: autocorrelated(rng, POINTS, 0.5),
    "autocorrelation 0.8": lambda rng: autocorrelated(rng, POINTS, 0.8),
    "slow wander (0.9) under noise": lambda rng: rng.standard_normal(POINTS) + 0.7 * autocorrelated(rng, POINTS, 0.9),
    "drift of 3 deviations": lambda rng: rng.standard_normal(POINTS) + np.linspace(0, 3, POINTS),
    "drift of 10 deviations": lambda rng: rng.standard_normal(POINTS) + np.linspace(0, 10, POINTS),
    "a season of 24, 2 deviations": lambda rng: (
        rng.standard_normal(POINTS) + 2 * np.sin(np.arange(POINTS) * np.pi / 12)
    ),
}


def step_times() -> list[Series]:
    """Median iteration time of a recipe over commits, relative to its mean, for recipes with at least eight commits;
    recipes are concatenated until they give a series of POINTS."""
    path = DATA / "megatron_loss_and_step_times.jsonl.gz"
    if not path.exists():
        return []
    by_recipe: dict[str, list[float]] = {}
    with gzip.open(path, "rt") as lines:
        for row in map(json.loads, filter(str.strip, lines)):
            steady = [
                value for value in row.get("iteration-time", {"v": []})["v"][1:] if isinstance(value, float | int)
            ]
            if steady:
                by_recipe.setdefault(row["path"], []).append(float(np.median(steady)))
    long = [np.array(values) / np.mean(values) for values in by_recipe.values() if len(values) >= 8]
    joined = np.concatenate(long) if long else np.zeros(0)
    return [joined[at : at + POINTS] for at in range(0, joined.size - POINTS + 1, POINTS)]


def turing() -> list[Series]:
    folder = DATA / "changepoints"
    paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
    read = [json.loads(path.read_bytes()) for path in paths if path.name != "annotations.json"]
    return [np.array(document["series"][0]["raw"], float) for document in read]


def permuted(rng: np.random.Generator, kept: list[Series]) -> Series:
    """POINTS of a random series in random order; drawn with replacement only if it has fewer."""
    series = kept[rng.integers(len(kept))]
    return rng.choice(series, POINTS, replace=series.size < POINTS)


def kinds(seen: DetectedChanges) -> set[str]:
    return {change.kind for change in seen.changes}


def nulls(count: int) -> Iterator[tuple[str, list[Rate]]]:
    """For each kind of noise, rates of series with a reported step, drift, either of them, and excursion."""
    draws = dict(NULLS)
    for name, kept in (("real step times, permuted", step_times()), ("Turing series, permuted", turing())):
        if kept:
            draws[f"{name} ({len(kept)})"] = lambda rng, kept=kept: permuted(rng, kept)
    for number, (name, draw) in enumerate(draws.items()):
        rng = np.random.default_rng([1, number])
        results = [kinds(detect(draw(rng))) for _ in range(count)]
        wanted = ({"step"}, {"drift"}, {"step", "drift"}, {"excursion"})
        yield name, [Rate(sum(bool(reported & group) for reported in results), count) for group in wanted]


POWERS = {
    "+3 % in the middle": (0.03, 100),
    "+5 % ten points from the end": (0.05, 190),
    "+5 % seven points from the end": (0.05, 193),
    "+2 % in the middle": (0.02, 100),
}


def powers(count: int) -> Iterator[tuple[str, float, float, Rate, Rate, float]]:
    """For each step: coefficient of variation, autocorrelation, rate found within ten points, rate reported as a step,
    and the share of found ones whose range contains the true place."""
    for number, (name, (size, at)) in enumerate(POWERS.items()):
        for cv in (0.01, 0.02):
            for correlation in (0.0, 0.5):
                rng = np.random.default_rng([2, number, round(100 * cv), round(10 * correlation)])
                near = steps = covered = 0
                for _ in range(count):
                    values = 100 * (1 + cv * autocorrelated(rng, POINTS, correlation))
                    values[at:] *= 1 + size
                    changes = [
                        change
                        for change in detect(values).lasting
                        if abs(change.at - at) <= 10 or change.low <= at <= change.high
                    ]
                    near += bool(changes)
                    steps += any(change.kind == "step" for change in changes)
                    covered += any(change.low <= at <= change.high for change in changes)
                yield name, cv, correlation, Rate(near, count), Rate(steps, count), covered / max(1, near)


def alerting(count: int) -> Rate:
    """Rate of series of normal noise in which the online detector, updated at each point, alerts at any time."""
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(count):
        detector = OnlineDetector()
        hits += any(detector.add([value]) for value in rng.standard_normal(POINTS))
    return Rate(hits, count)


def speeds() -> Iterator[tuple[int, float]]:
    """CPU milliseconds for a series with one step, median over several series."""
    for n, count in ((200, 51), (1000, 11), (10000, 5)):
        rng = np.random.default_rng(4)
        spent = []
        for _ in range(count):
            values = rng.standard_normal(n) + 2 * (np.arange(n) >= n // 2)
            begun = time.process_time()
            detect(values)
            spent.append(1e3 * (time.process_time() - begun))
        yield n, float(np.median(spent))


def main(scale: float = 1.0) -> None:
    count = max(20, round(3000 * scale))
    print(f"No change: {POINTS} points, {count} series each; share of series with one reported (95 % bounds)\n")
    print(f"{'noise':36}" + "".join(f" {head:>24}" for head in ("a step", "a drift", "either", "an excursion")))
    for name, rates in nulls(count):
        print(f"{name:36}" + "".join(f" {rate!s:>24}" for rate in rates), flush=True)
    count = max(20, round(500 * scale))
    print(f"\nOne step: {POINTS} points, {count} series each; share found (95 % bounds), and reported as a step\n")
    print(f"{'step':32} {'cv':>5} {'autocorr.':>9} {'found':>24} {'as a step':>24} {'range holds it':>15}")
    for name, cv, correlation, found_rate, steps, covered in powers(count):
        print(
            f"{name:32} {100 * cv:3.0f} % {correlation:9.1f} {found_rate!s:>24} {steps!s:>24} {100 * covered:13.1f} %",
            flush=True,
        )
    count = max(10, round(400 * scale))
    print(f"\nOnline detection after each of {POINTS} points: {alerting(count)} of {count} series alert.")
    print("\nCPU, one series with a step: " + ", ".join(f"{n:,} points {ms:.1f} ms" for n, ms in speeds()))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
