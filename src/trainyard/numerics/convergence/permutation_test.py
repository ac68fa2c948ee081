"""Permutation test on paired curves: if HEAD is the same training, the labels of a seed's runs are exchangeable.

With one head and one base per seed, relabelling flips a sign: 2^n outcomes of n pairs, too few for 5 % below six pairs.
Repeats of a seed on one side (A/A runs) add outcomes and show the noise: with two bases and a head there are 3^n. The
maximum statistic over the segments controls the family-wise error rate for any noise distribution, and its step-down
form identifies the segments (Westfall and Young 1993, algorithm 2.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb, prod

import numpy as np

from trainyard.numerics.convergence.paired_curves import F64

_MAX_OUTCOMES = 1 << 15
"""Largest number of outcomes that are enumerated; of more, this many are drawn, including the observed one."""
_TIE_TOLERANCE = 1e-9
"""Relative tolerance of ties: the same sum in another order differs by rounding."""

Groups = Sequence[tuple[F64, F64]]
"""(heads, bases) of each seed, each [run, segment]."""


def least_p(counts: Sequence[tuple[int, int]]) -> float:
    """The smallest p-value attainable with these numbers of (heads, bases) per seed. If every seed has as many heads as
    bases, swapping all labels is an outcome with the same statistic, which doubles it."""
    outcomes = prod(comb(heads + bases, heads) for heads, bases in counts)
    return (2 if all(heads == bases for heads, bases in counts) else 1) / outcomes


def adjusted(groups: Groups, floor: float) -> F64:
    """Family-wise adjusted p-values [segment]. `floor`: a difference in log-loss below which segments are irrelevant;
    it keeps segments with little noise from dominating those with visible differences (Tusher et al. 2001). Both
    `floor` and the spread are the same for all outcomes, so the test stays exact."""
    spread = sum(_sum_of_squares(np.concatenate(group)) for group in groups)
    statistics = np.abs(_outcomes(groups)) / np.sqrt(spread + floor**2)  # [outcome, segment]; row 0 is the observed one
    observed = statistics[0] * (1 - _TIE_TOLERANCE)
    order = np.argsort(-statistics[0], kind="stable")  # segments, the largest observed statistic first
    # Column k, of segment order[k]: the largest statistic of an outcome in that segment and those after it in `order`.
    largest = np.maximum.accumulate(statistics[:, order[::-1]], axis=1)[:, ::-1]
    # Share of outcomes that reach the observed statistic; none is less than that of a larger observed statistic.
    p = np.maximum.accumulate((largest >= observed[order]).mean(axis=0))
    result = np.empty_like(p)
    result[order] = p
    return result


def _sum_of_squares(runs: F64) -> F64:
    """Sum of squares [segment] of `runs` [run, segment] around their mean, which does not depend on the labels."""
    return ((runs - runs.mean(axis=0)) ** 2).sum(axis=0)


def _outcomes(groups: Groups) -> F64:
    """[outcome, segment]: the sum over seeds of head's mean minus base's, for all labellings or a sample of them; the
    observed labels first."""
    differences_by_seed = [_relabelled(heads, bases) for heads, bases in groups]  # each [labelling, segment]
    if prod(len(differences) for differences in differences_by_seed) > _MAX_OUTCOMES:
        random = np.random.default_rng(0)
        # A labelling of each seed per outcome; 0 is the observed one.
        sampled_differences = [
            differences[np.append(0, random.integers(len(differences), size=_MAX_OUTCOMES - 1))]
            for differences in differences_by_seed
        ]
        return np.sum(sampled_differences, axis=0)
    total = np.zeros((1, groups[0][0].shape[1]))
    for differences in differences_by_seed:
        total = (total[:, None] + differences[None]).reshape(-1, total.shape[1])
    return total


def _relabelled(heads: F64, bases: F64) -> F64:
    """Head's mean minus base's [labelling, segment] of one seed, for each choice of the runs that are labelled heads;
    the observed labels first."""
    runs = np.concatenate([heads, bases])
    head_rows = np.array(list(combinations(range(len(runs)), len(heads))))
    sums, total = runs[head_rows].sum(axis=1), runs.sum(axis=0)
    return sums / len(heads) - (total - sums) / len(bases)
