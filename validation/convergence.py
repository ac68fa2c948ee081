"""False-alarm rate and power of `trainyard gate convergence`: `python -m validation.convergence [TRIALS]`.

Runs with the same seed diverge from the first rounding difference on. In Megatron-LM's golden values (loss curves over
commits that were not meant to change training) the relative difference of two such runs begins with rounding, grows to
1e-3 over the first third, and settles; in the tail each pair has its own offset, several times larger than the variance
between the steps of one run suggests. Simulated noise (`drifting`) has this form: a slow and a quick part with one
amplitude. The real differences are used as well (`Real`): a random pair for each run, with a random sign.

A shift is added as a fraction of the loss in the second half of the steps, and so in the whole tail.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.numerics.convergence.compare_curves import judge
from trainyard.numerics.convergence.paired_curves import F64, PairedCurves, Seed
from trainyard.stats.student_t import quantile

PUBLIC = Path(os.environ.get("TRAINYARD_PUBLIC_DATA", Path(__file__).parents[2] / "shared" / "data"))
CURVES = "megatron_loss_and_step_times.jsonl.gz"
SEED = 2026
STEPS = 400
SHIFT = 0.0025
TAIL = 80
"""The last steps of `STEPS`, which the test compares."""

Noise = Callable[[np.random.Generator, int, int], F64]
"""(generator, seeds, runs of each) -> deviations of the log-loss from the mean of a seed's runs: [seed, run, step]."""


def drifting(draw: np.random.Generator, seeds: int, runs: int, offset: float = 4e-4, quick: float = 3e-4) -> F64:
    """Simulated noise. `offset`, `quick`: standard deviations of the slow and the quick part of two runs' difference in
    the tail."""
    t = np.arange(STEPS) / STEPS
    growth = np.minimum(1, np.exp((t - 0.35) * 40))
    amplitude = growth * (1 + 2 * np.exp(-(((t - 0.4) / 0.1) ** 2)))
    keep = np.exp(-1 / (0.3 * STEPS))
    slow = draw.standard_normal((STEPS, seeds, runs))
    slow[1:] *= sqrt(1 - keep**2)
    for step in range(1, STEPS):
        slow[step] += keep * slow[step - 1]
    return amplitude * (offset * np.moveaxis(slow, 0, 2) + quick * draw.standard_normal((seeds, runs, STEPS))) / sqrt(2)


def heavy(draw: np.random.Generator, seeds: int, runs: int) -> F64:
    """One run in ten drifts three times as far."""
    return drifting(draw, seeds, runs) * np.where(draw.random((seeds, runs, 1)) < 0.1, 3.0, 1.0)


def uneven(draw: np.random.Generator, seeds: int, runs: int) -> F64:
    """Noise whose scale differs between seeds, by a factor from one half to two."""
    return drifting(draw, seeds, runs) * 2 ** draw.uniform(-1, 1, (seeds, 1, 1))


class Real(NamedTuple):
    """Noise from differences of successive recorded runs, [pair, step]. A run gets one of them divided by the square
    root of 2, so that the difference of two runs has the recorded scale."""

    differences: F64

    def __call__(self, draw: np.random.Generator, seeds: int, runs: int) -> F64:
        chosen = self.differences[draw.integers(len(self.differences), size=(seeds, runs))]
        return chosen * draw.choice([-1.0, 1.0], size=(seeds, runs, 1)) / sqrt(2)


def recorded(path: Path) -> list[F64]:
    """Differences of log-loss between successive curves of the same test, if both have the same steps, 20 or more."""
    curves: dict[str, list[tuple[str, list[int], NDArray[np.float64]]]] = defaultdict(list)
    with gzip.open(path, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            losses, steps = row.get("lm loss", {}).get("v", []), row.get("lm loss", {}).get("s", [])
            if len(losses) >= 20 and all(isinstance(loss, float) and loss > 0 for loss in losses):
                curves[row["path"]].append((row["date"], steps, np.log(losses)))
    return [
        after - before
        for versions in curves.values()
        for (_, steps, before), (_, same, after) in pairwise(sorted(versions, key=lambda version: version[0]))
        if steps == same
    ]


def drifted(differences: Sequence[F64], longest: float = 0.02) -> F64:
    """The differences of GPT-345M (400 recorded losses) that are not bitwise zero. Those larger than `longest` anywhere
    are left out: these tests were changed on purpose (another data order or model)."""
    return np.array(
        [curve for curve in differences if len(curve) == STEPS and curve.any() and abs(curve).max() < longest]
    )


def verdicts(
    draw: np.random.Generator, noise: Noise, design: tuple[int, int, int], shift: float, trials: int
) -> list[str]:
    """Verdicts on `trials` trials. `design`: seeds, head runs of each, base runs of each."""
    seeds, heads, bases = design
    steps = np.arange(STEPS)
    runs = np.log(4 + 6 * np.exp(-steps / 60)) + noise(draw, trials * seeds, heads + bases)
    runs[:, :heads] += np.where(steps >= STEPS // 2, np.log1p(shift), 0.0)
    curves = [Seed(str(number), seed[:heads], seed[heads:]) for number, seed in enumerate(np.exp(runs))]
    return [
        judge(PairedCurves(tuple(curves[first : first + seeds]), steps, ())).verdict
        for first in range(0, trials * seeds, seeds)
    ]


def bounds(hits: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a rate (Wilson 1927)."""
    z = 1.959964
    middle, half = (
        hits / trials + z * z / (2 * trials),
        z * sqrt(hits / trials * (1 - hits / trials) / trials + z * z / (4 * trials * trials)),
    )
    return (middle - half) / (1 + z * z / trials), (middle + half) / (1 + z * z / trials)


DESIGNS = {
    "3 seeds, 1 + 1": (3, 1, 1),
    "4 seeds, 1 + 1": (4, 1, 1),
    "5 seeds, 1 + 1": (5, 1, 1),
    "6 seeds, 1 + 1": (6, 1, 1),
    "3 seeds, 1 + 2": (3, 1, 2),
    "4 seeds, 1 + 2": (4, 1, 2),
    "5 seeds, 1 + 2": (5, 1, 2),
}


def rates(number: int, noise: Noise, trials: int, shifts: Sequence[float]) -> dict[str, list[dict[str, int]]]:
    """Count of each verdict, by design and shift. `number`: index of the noise, part of the seed."""
    table: dict[str, list[dict[str, int]]] = {}
    for name, design in DESIGNS.items():
        table[name] = []
        for shift in shifts:
            draw = np.random.default_rng([SEED, number, *design, round(1e6 * shift)])
            counts = verdicts(draw, noise, design, shift, trials)
            table[name].append({verdict: counts.count(verdict) for verdict in ("same", "differs", "cannot tell")})
    return table


def main(trials: int) -> None:
    print(
        f"Seed {SEED}, {trials} trials a cell, {STEPS} steps, alpha 5 %, margin 0.1 %; rates in %, with 95 % bounds.\n"
    )
    noises: dict[str, Noise] = {
        "simulated": drifting,
        "simulated, one run in ten drifts three times as far": heavy,
        "simulated, seeds with different noise": uneven,
    }
    if (path := PUBLIC / CURVES).exists():
        every = recorded(path)
        differences = drifted(every)
        noises[f"{len(differences)} real differences, random signs"] = Real(differences)
        print(real_noise(every, differences))
    else:
        print(f"{path} does not exist: real curves are left out.\n")
    for number, (title, noise) in enumerate(noises.items()):
        print(f"{title}\n")
        print("| runs (head + base per seed) | false alarms | no change: same | +0.25 %: found |")
        print("|---|---|---|---|")
        for design, (none, worse) in rates(number, noise, trials, (0.0, SHIFT)).items():
            cells = [none["differs"], none["same"], worse["differs"]]
            print(f"| {design} | " + " | ".join(_format_rate(hits, trials) for hits in cells) + " |")
        print()


def real_noise(every: Sequence[F64], differences: F64) -> str:
    """Summary of same-seed noise: the number of bitwise equal pairs, the drift of the others, and its ratio to the
    standard error that a run's own tail suggests (eight batch means)."""
    same = sum(not curve.any() for curve in every)
    share = STEPS // 20
    first, third, last = (
        100 * np.sqrt((differences[:, stretch] ** 2).mean())
        for stretch in (slice(share), slice(7 * share, 8 * share), slice(-TAIL, None))
    )
    tails = differences[:, -TAIL:]
    expected = tails.reshape(len(tails), 8, -1).mean(axis=2).std(axis=1, ddof=1) / sqrt(8)
    ratio = np.abs(tails.mean(axis=1)) / expected
    crossed = float((ratio > quantile(0.975, 7)).mean())
    return (
        f"Recorded curves, {len(every)} pairs of successive ones: {same} bitwise equal.\n"
        f"The {len(differences)} other pairs of 345M-parameter GPTs differ by (root mean square) {first:.4f} % of the "
        f"loss in the first twentieth, {third:.3f} % in the eighth, {last:.3f} % in the last fifth.\n"
        f"Means of the last fifth: standard deviation {100 * sqrt((tails.mean(axis=1) ** 2).mean()):.3f} %, "
        f"{np.sqrt((ratio**2).mean()):.1f} times (root mean square) the standard error from batch means within a "
        f"run: a test on the steps of one pair has {100 * crossed:.0f} % false alarms.\n"
    )


def _format_rate(hits: int, trials: int) -> str:
    low, high = bounds(hits, trials)
    return f"{100 * hits / trials:.1f} ({100 * low:.1f} to {100 * high:.1f})"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
