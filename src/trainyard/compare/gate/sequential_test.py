"""A sequential test of paired differences: are they above zero, looked at after every pair?

The null hypothesis is that each difference is as likely to be its own negative: what of two like runs comes first was
drawn by lot, so their order is all that its sign tells, whatever the noise and however it drifts. Given the sizes of n
differences, all 2^n patterns of signs are then equally likely, and what share of them would have stopped the test by
now is counted, not approximated. The statistic is Wilcoxon's signed-rank sum (Wilcoxon 1945, Biometrics Bulletin 1(6));
looking often is paid for by an error that is spent little by little (Lan & DeMets 1983, Biometrika 70(3)).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log2
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput

Values = npt.NDArray[np.float64]
MOST = 24
"""Pairs at most: the patterns of more do not fit into a laptop's memory."""

_EXACT = 1e-9
"""A product that should be a whole number may be a little less."""


def first_look(alpha: float) -> int:
    """Pairs before which the test cannot stop: of fewer not even one pattern of signs is as rare as `alpha`."""
    return max(1, int(np.ceil(-log2(alpha) - 1e-12)))


def spent(alpha: float, cap: int) -> Values:
    """The error that may be used up after 0, 1, ... `cap` pairs: at the first look that of a single pattern, then
    equal parts, and `alpha` in all."""
    first = first_look(alpha)
    if not 0 < alpha < 1 or not first <= cap <= MOST:
        raise BadInput(f"{cap} pairs at most and an error of {alpha:g}: from {first} to {MOST} pairs can be looked at.")
    looks = np.arange(cap + 1)
    more = (alpha - 0.5**first) * (looks - first) / max(1, cap - first)
    return np.where(looks < first, 0.0, 0.5**first + more)


class Look(NamedTuple):
    """After a pair. `least`: twice the summed ranks of positive differences from which on the test stops; None: it
    cannot stop here. `alarms`: the share of all patterns of signs that would have stopped it by now: its error."""

    least: int | None
    alarms: float


def stops(differences: Sequence[float] | Values, alpha: float, cap: int) -> int:
    """After how many differences they are shown to be above zero; 0: they are not yet."""
    values = np.asarray(differences, float)
    for seen, look in enumerate(looks(np.abs(values), alpha, cap), 1):
        if look.least is not None and doubled_ranks(np.abs(values[:seen]))[values[:seen] > 0].sum() >= look.least:
            return seen
    return 0


def looks(sizes: Values, alpha: float, cap: int) -> Iterator[Look]:
    """One after each difference of these sizes, `cap` at most."""
    allowed = spent(alpha, cap)
    crossed = np.zeros(1, bool)  # each pattern of signs so far; the newest is the highest bit
    for seen in range(1, min(len(sizes), cap) + 1):
        crossed = np.concatenate([crossed, crossed])
        already = int(np.count_nonzero(crossed))
        most, least = int(allowed[seen] * 2**seen + _EXACT) - already, None
        if most > 0:
            sums = _rank_sums(sizes[:seen])
            as_large = np.cumsum(np.bincount(sums[~crossed])[::-1])[::-1]
            rare = np.flatnonzero(as_large <= most)
            if rare.size:
                least = int(rare[0])
                already += int(as_large[least])
                crossed |= sums >= least
        yield Look(least, already / 2**seen)


def _rank_sums(sizes: Values) -> npt.NDArray[np.int64]:
    """Of every pattern of signs, twice the sum of the ranks of what is positive; equal sizes share their ranks, and
    what is zero has none."""
    sums = np.zeros(1, np.int64)
    for rank in doubled_ranks(sizes):
        sums = np.concatenate([sums, sums + rank])
    return sums


def doubled_ranks(sizes: Values) -> npt.NDArray[np.int64]:
    """Twice each one's rank among those that are not zero, so that shared ranks are whole numbers."""
    order = np.sort(sizes[sizes > 0])
    below, upto = np.searchsorted(order, sizes, "left"), np.searchsorted(order, sizes, "right")
    return np.where(sizes > 0, below + upto + 1, 0)
