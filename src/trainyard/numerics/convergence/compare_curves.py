"""Compares the convergence of paired runs with the same seeds, to judge a driver, a compiler or a number format.

Noise between runs of the same seed (docs/measured.md): the runs diverge from the first rounding difference on, and
then keep an offset of their own. Only runs are therefore replicates; the steps of one run are not.
"""

from __future__ import annotations

from math import exp, inf, isfinite
from typing import Any, Literal

import msgspec
import numpy as np

from trainyard.errors import BadInput
from trainyard.numerics.convergence.curve_segments import means, starts
from trainyard.numerics.convergence.effect_size import Sizes, pairs_needed, sizes
from trainyard.numerics.convergence.paired_curves import F64, LEAST_STEPS, PairedCurves
from trainyard.numerics.convergence.permutation_test import adjusted, least_p

ALPHA = 0.05
"""Default rate of false alarms."""
MARGIN = 0.001
"""Default relative difference of the final loss below which a difference is irrelevant."""


class SeedFound(msgspec.Struct, frozen=True, kw_only=True):
    """One seed: the numbers of its distinct runs on each side, and the relative difference of their mean tail loss,
    head / base - 1."""

    seed: str
    heads: int
    bases: int
    difference: float | None


class Convergence(msgspec.Struct, frozen=True, kw_only=True):
    """`difference`, `low`, `high`: relative difference of the tail's loss, head / base - 1, with its interval; None if
    unknown. `onset`: the first step of the first segment that differs, counted from 0; `onset_difference`: relative
    difference in that segment. `noise`: relative standard deviation of a run's tail loss within its seed;
    `pairs_needed`: number of seeds that would settle an open verdict."""

    verdict: Literal["same", "differs", "cannot tell"]
    identical: bool = False
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    onset: int | None = None
    onset_difference: float | None = None
    healed: bool = False
    """Whether only earlier segments differ and the tail is the same within the margin."""
    diverged: bool = False
    noise: float | None = None
    pairs_needed: int | None = None
    test: Literal["bits", "relabelling", "student", "none"]
    pairs: int
    seeds: tuple[SeedFound, ...]
    heads: int
    bases: int
    steps: int
    tail_from: int
    margin: float
    alpha: float
    notes: tuple[str, ...] = ()


def judge(paired: PairedCurves, margin: float = MARGIN, alpha: float = ALPHA) -> Convergence:
    """Judges whether heads and bases converge to the same loss.

    `margin`: relative differences of the tail's loss below it are irrelevant. `alpha`: the rate of false alarms.

    "differs": a difference is significant and its estimate exceeds the margin. "same": the interval of the tail's
    difference lies within the margin (two one-sided tests, Schuirmann 1987, at half of alpha each). Raises `BadInput`
    for too few steps.
    """
    seeds, steps = paired.seeds, len(paired.steps)
    segment_starts = starts(steps)  # index of the first step of each segment; the last segment is the tail
    # (heads, bases) of each seed: mean log-losses, [run, segment].
    groups = [(means(np.log(seed.heads), segment_starts), means(np.log(seed.bases), segment_starts)) for seed in seeds]
    common_fields: dict[str, Any] = {
        "pairs": len(seeds),
        "seeds": tuple(_seed_summary(seed.label, *group) for seed, group in zip(seeds, groups)),
        "heads": sum(len(seed.heads) for seed in seeds),
        "bases": sum(len(seed.bases) for seed in seeds),
        "steps": steps,
        "tail_from": int(paired.steps[segment_starts[-1]]),
        "margin": margin,
        "alpha": alpha,
        "notes": paired.notes,
    }
    if paired.identical:
        return Convergence(
            verdict="same", identical=True, difference=0.0, low=0.0, high=0.0, noise=0.0, test="bits", **common_fields
        )
    if (diverged_step := paired.diverged) is not None:
        return Convergence(verdict="differs", diverged=True, onset=diverged_step, test="none", **common_fields)
    if steps < LEAST_STEPS:
        raise BadInput(
            f"the curves have {steps} steps in common and are not bitwise equal: at least {LEAST_STEPS} are needed.",
            "Train for longer.",
        )
    log_margin = np.log1p(margin)
    effect = sizes(groups, alpha)
    is_exact = least_p([(len(seed.heads), len(seed.bases)) for seed in seeds]) <= alpha
    p = adjusted(groups, log_margin) if is_exact else _p_from_tail(effect, alpha)
    differing = np.flatnonzero((p <= alpha) & (np.abs(effect.mean) >= log_margin))  # segments
    is_within_margin = bool(-log_margin < effect.low[-1] and effect.high[-1] < log_margin)
    verdict = "differs" if len(differing) else "same" if is_within_margin else "cannot tell"
    # Degrees of freedom of the noise: those of repeats of a seed, without those of the scatter between seeds.
    noise, repeat_freedom = float(effect.noise[-1]), effect.freedom - (len(seeds) - 1)
    return Convergence(
        verdict=verdict,
        difference=_relative_difference(effect.mean[-1]),
        low=_relative_difference(effect.low[-1]),
        high=_relative_difference(effect.high[-1]),
        p_value=float(p[-1]),
        onset=int(paired.steps[segment_starts[differing[0]]]) if len(differing) else None,
        onset_difference=_relative_difference(float(effect.mean[differing[0]])) if len(differing) else None,
        healed=bool(len(differing)) and is_within_margin,
        noise=noise if isfinite(noise) else None,
        pairs_needed=pairs_needed(noise, repeat_freedom, log_margin, alpha) if verdict == "cannot tell" else None,
        test="relabelling" if is_exact else "student" if effect.freedom else "none",
        **common_fields,
    )


def _seed_summary(label: str, heads: F64, bases: F64) -> SeedFound:
    """Summary of one seed; `heads`, `bases`: log-losses [run, segment]."""
    difference = float(heads[:, -1].mean() - bases[:, -1].mean())
    return SeedFound(seed=label, heads=len(heads), bases=len(bases), difference=_relative_difference(difference))


def _p_from_tail(effect: Sizes, alpha: float) -> F64:
    """p-values [segment] of no difference in the loss between heads and bases, by Student's t.

    `effect`: estimates of the difference by segment (a range of steps; the last is the tail); `alpha`: error rate. The
    segments are tested from the tail backwards as long as each is rejected (p <= `alpha`); those before the first that
    is not rejected get 1. A fixed order of tests controls the family-wise error rate without a correction
    for the number of segments (Westfall and Krishen 2001).
    """
    p = np.ones_like(effect.mean)
    largest_p = 0.0
    for segment in reversed(range(len(p))):
        p[segment] = largest_p = max(effect.p(segment), largest_p)
        if largest_p > alpha:
            break
    return p


def _relative_difference(log_ratio: float) -> float | None:
    """The relative difference head / base - 1 from log(head / base); None if it is infinite."""
    return exp(log_ratio) - 1 if abs(log_ratio) < inf else None
