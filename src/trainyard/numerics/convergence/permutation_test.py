"""Sign flips, generalised: were HEAD the same training, which of a seed's runs is called head would be chance.

Of one head and one base a seed, relabelling is the flip of a sign: 2^n outcomes of n pairs, too few for 5 % below six
pairs. Repeats of a seed on one side (A/A runs) add outcomes and bring the noise: two bases and a head are 3^n. The
largest statistic over the segments, over all outcomes, keeps the family-wise rate whatever the noise's shape; and its
step-down form says in which segments (Westfall and Young 1993, algorithm 2.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb, prod

import numpy as np

from trainyard.numerics.convergence.paired_curves import F64

_ALL = 1 << 15
"""Outcomes that are all counted; of more, so many are drawn, the observed one among them."""
_SAME = 1e-9
"""Outcomes this close (relatively) are ties: sums in another order."""

Groups = Sequence[tuple[F64, F64]]
"""Of each seed: heads and bases, [run, segment]."""


def least_p(counts: Sequence[tuple[int, int]]) -> float:
    """The smallest p-value that so many (heads, bases) of each seed can reach: all labels the other way round are as
    far from zero, where that is an outcome too."""
    outcomes = prod(comb(heads + bases, heads) for heads, bases in counts)
    return (2 if all(heads == bases for heads, bases in counts) else 1) / outcomes


def adjusted(groups: Groups, floor: float) -> F64:
    """Family-wise p-values of the segments. `floor`: a spread below which differences are of no interest; it keeps
    quiet segments from counting as much as those in which the runs differ visibly (Tusher et al. 2001). It is the same
    for all outcomes, as is the spread, so the test stays exact."""
    spread = sum(_spread(np.concatenate(group)) for group in groups)
    statistics = np.abs(_outcomes(groups)) / np.sqrt(spread + floor**2)
    seen = statistics[0] * (1 - _SAME)
    order = np.argsort(-statistics[0], kind="stable")
    largest = np.maximum.accumulate(statistics[:, order[::-1]], axis=1)[:, ::-1]
    p = np.maximum.accumulate((largest >= seen[order]).mean(axis=0))
    result = np.empty_like(p)
    result[order] = p
    return result


def _spread(runs: F64) -> F64:
    """Sum of squares around the seed's own mean: of any labels the same."""
    return ((runs - runs.mean(axis=0)) ** 2).sum(axis=0)


def _outcomes(groups: Groups) -> F64:
    """[outcome, segment]: the sum over seeds of head's mean less base's, the observed labels first."""
    choices = [_choices(heads, bases) for heads, bases in groups]
    if prod(len(choice) for choice in choices) > _ALL:
        draw = np.random.default_rng(0)
        drawn = [choice[np.append(0, draw.integers(len(choice), size=_ALL - 1))] for choice in choices]
        return np.sum(drawn, axis=0)
    total = np.zeros((1, groups[0][0].shape[1]))
    for choice in choices:
        total = (total[:, None] + choice[None]).reshape(-1, total.shape[1])
    return total


def _choices(heads: F64, bases: F64) -> F64:
    """[labels, segment] of one seed; the observed labels first."""
    runs = np.concatenate([heads, bases])
    chosen = np.array(list(combinations(range(len(runs)), len(heads))))
    sums, all_of_them = runs[chosen].sum(axis=1), runs.sum(axis=0)
    return sums / len(heads) - (all_of_them - sums) / len(bases)
