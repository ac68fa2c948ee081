"""Loss curves paired by seed: runs of HEAD and BASE with the same seed read the same data, and differ only by the
change under test and by rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadInput
from trainyard.numerics.convergence.curves import LossCurve, same_work

F64 = NDArray[np.float64]

LEAST_STEPS = 10
"""Smallest number of common steps of curves that are not bitwise equal."""


class Seed(NamedTuple):
    """The runs of one seed as rows of losses [run, step] over the common steps, each distinct curve once. NaN: the loss
    was not finite."""

    label: str
    heads: F64
    bases: F64

    @property
    def identical(self) -> bool:
        """Whether the seed has one distinct curve a side, and both are bitwise equal."""
        return len(self.heads) == len(self.bases) == 1 and bool(np.array_equal(self.heads, self.bases))


class PairedCurves(NamedTuple):
    """`steps`: those that all curves have. `notes`: sentences about left-out data and other caveats."""

    seeds: tuple[Seed, ...]
    steps: NDArray[np.int64]
    notes: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """Whether the curves of every seed are identical."""
        return all(seed.identical for seed in self.seeds)

    @property
    def diverged(self) -> int | None:
        """The first step at which a head's loss is not finite; the bases' all are."""
        is_not_finite = np.any([~np.isfinite(seed.heads).all(axis=0) for seed in self.seeds], axis=0)
        return int(self.steps[np.argmax(is_not_finite)]) if is_not_finite.any() else None


def pair(heads: Sequence[LossCurve], bases: Sequence[LossCurve]) -> PairedCurves:
    """Pairs curves by seed, over the steps that all have; curves that are bitwise equal to another of their seed and
    side are left out, with a note. `heads`, `bases`: of any seeds. Raises `BadInput` if there is nothing to pair, the
    curves cannot be compared, or a base has a loss that is not finite."""
    if not heads or not bases:
        raise BadInput("a comparison needs runs on both sides.", "Give HEAD, and --base or --golden.")
    same_work([*heads, *bases])
    notes: list[str] = []
    groups = _by_seed(heads, bases, notes)  # seed -> (curves of heads, curves of bases)
    curves = [curve for group in groups.values() for side in group for curve in side]
    steps = _common_steps(curves, notes)
    for curve in curves:
        _check_positive(curve)
    seeds = tuple(
        Seed(label=label, heads=_rows(seed_heads, steps), bases=_rows(seed_bases, steps))
        for label, (seed_heads, seed_bases) in groups.items()
    )
    for label, (seed_heads, seed_bases) in groups.items():
        if len({curve.start for curve in (*seed_heads, *seed_bases) if curve.start}) > 1:
            notes.append(
                f"Seed {label} starts from different weights on the two sides: they differ by more than rounding."
            )
    for (_, base_curves), seed in zip(groups.values(), seeds):
        for curve, losses in zip(base_curves, seed.bases):
            is_finite = np.isfinite(losses)
            if not is_finite.all():
                raise BadInput(
                    f"{curve.name}, a base, has a loss that is not finite at step {steps[~is_finite][0] + 1}.",
                    "Compare with runs that learned.",
                )
    distinct = tuple(
        Seed(label=seed.label, heads=np.unique(seed.heads, axis=0), bases=np.unique(seed.bases, axis=0))
        for seed in seeds
    )
    if repeat_count := len(curves) - sum(len(seed.heads) + len(seed.bases) for seed in distinct):
        notes.append(
            f"Runs that are bitwise equal to another of their seed and side: {repeat_count}. They count once, as they "
            "show no noise; runs with another order of summation would (another micro-batch size or layout)."
        )
    return PairedCurves(seeds=distinct, steps=steps, notes=tuple(notes))


def _by_seed(
    heads: Sequence[LossCurve], bases: Sequence[LossCurve], notes: list[str]
) -> dict[str, tuple[list[LossCurve], list[LossCurve]]]:
    """(curves of the head, curves of the base) by seed, for seeds that both sides have; in the order given if no seed
    is known. Appends to `notes` what was left out."""
    if all(curve.seed is None for curve in (*heads, *bases)):
        if len(heads) != len(bases):
            raise BadInput(
                f"the runs' seeds are unknown, so {len(heads)} heads cannot be paired with {len(bases)} bases.",
                "Give as many of each, in the same order; the seed of a script is read from --seed N.",
            )
        notes.append("The runs' seeds are unknown: paired in the order given.")
        return {str(number): ([head], [base]) for number, (head, base) in enumerate(zip(heads, bases))}
    if unknown_names := [curve.name for curve in (*heads, *bases) if curve.seed is None]:
        known_seeds = sorted({curve.seed for curve in (*heads, *bases) if curve.seed is not None})
        raise BadInput(
            f"the seed of {', '.join(unknown_names)} is unknown, but the other runs have seeds "
            f"{', '.join(map(str, known_seeds))}.",
            "Pass --seed N to the script.",
        )
    seeds_by_side = [sorted({curve.seed for curve in side if curve.seed is not None}) for side in (heads, bases)]
    shared_seeds = [seed for seed in seeds_by_side[0] if seed in seeds_by_side[1]]
    if not shared_seeds:
        listed = " against ".join(", ".join(map(str, side)) for side in seeds_by_side)
        raise BadInput(
            f"the two sides have no seed in common: {listed}. Runs with other seeds read other data, so that their "
            "losses differ far more than by the change under test.",
            "Run HEAD with the seeds of BASE.",
        )
    if unpaired_seeds := sorted(set(seeds_by_side[0]) ^ set(seeds_by_side[1])):
        notes.append(f"Left out, of one side only: seed {', '.join(map(str, unpaired_seeds))}.")
    return {
        str(seed): ([c for c in heads if c.seed == seed], [c for c in bases if c.seed == seed]) for seed in shared_seeds
    }


def _common_steps(curves: Sequence[LossCurve], notes: list[str]) -> NDArray[np.int64]:
    """The steps that all curves have, increasing. Appends a sentence to `notes` if some curves have more. Raises
    `BadInput` if there are none."""
    common = set(curves[0].steps).intersection(*(curve.steps for curve in curves[1:]))
    if not common:
        ranges = "; ".join(
            f"{curve.name} has steps {curve.steps[0] + 1} to {curve.steps[-1] + 1}"
            if curve.steps
            else f"{curve.name} has none"
            for curve in curves
        )
        raise BadInput(f"the curves have no step in common: {ranges}.")
    longest = max(len(curve.steps) for curve in curves)
    if len(common) < longest:
        notes.append(f"Compared over the {len(common)} steps that all runs have, of up to {longest}.")
    return np.array(sorted(common), np.int64)


def _check_positive(curve: LossCurve) -> None:
    """Raises `BadInput` if a loss is not positive."""
    for step, loss in zip(curve.steps, curve.losses):
        if loss is not None and loss <= 0:
            raise BadInput(
                f"{curve.name}: the loss at step {step + 1} is {loss:g}, but relative differences need losses > 0.",
                "Use a positive loss, such as a cross-entropy or a squared error.",
            )


def _rows(curves: Sequence[LossCurve], steps: NDArray[np.int64]) -> F64:
    """Losses [curve, step] at `steps`, which all curves have; NaN: not finite."""
    rows = np.empty((len(curves), len(steps)))
    for row, curve in zip(rows, curves):
        losses = np.array([np.nan if loss is None else loss for loss in curve.losses])
        row[:] = losses[np.isin(curve.steps, steps, assume_unique=True)]
    return rows
