"""Which account did it: paired ledgers compared row by row, with one error for all rows.

Of each pair the logarithm of an account's time with head over that with base. What all accounts have in common (clocks,
power, another tenant of the machine) is their median and is taken off first; then each account's mean is held against
its spread (`moderated`), and all chances together are Holm's. Five pairs can name an account this way; by
ranks they could not (2^-5 is no 1 %).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, expm1, sqrt
from typing import Literal

import msgspec
import numpy as np

from trainyard.compare.gate.moderated_variance import Column, moderated
from trainyard.errors import NotEnoughEvidence
from trainyard.stats.student_t import quantile, two_sided

FEWEST = 3
"""Pairs of which a spread can be told."""
_SMALL = 1e-3
"""Of the step: accounts below it on both sides are left out."""
_COMMON = 1e-2
"""Of the step: accounts below it do not say what all have in common."""
_FEW = 4
"""Accounts of fewer have nothing in common that could be told from one of them."""
_NOTHING = 1e-4
"""Of the step: stands for an account that one side has not, so that it has a logarithm."""
_CANCELS = 0.2
"""Of the larger of two sums: what may be left where time only moved from some accounts to others."""

Ledgers = Sequence[tuple[Mapping[str, float], Mapping[str, float]]]
"""Account -> ns a step, of base and of head, a pair each."""


class ChangedAccount(msgspec.Struct, frozen=True, kw_only=True):
    """An account. `ns`: what its change costs a step, without what all have in common; `change`: the same as a share of
    what it took, between `low` and `high`; `chance`: of a change as large where there is none, among all accounts.
    `shifted`: it moved, and others moved back as much: a kernel renamed, fused, or booked elsewhere."""

    account: str
    before_ns: float
    after_ns: float
    ns: float
    change: float
    low: float
    high: float
    chance: float
    verdict: Literal["worse", "better", "same", "unknown"]
    shifted: bool = False


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """What all accounts have in common, as a share of each. `slower`: surely so, and by enough to matter."""

    change: float
    low: float
    high: float
    chance: float
    slower: bool


class ChangedAccounts(msgspec.Struct, frozen=True, kw_only=True):
    """`accounts`: what costs most first. `small`: accounts too small to be told."""

    pairs: int
    alpha: float
    common: Common
    accounts: tuple[ChangedAccount, ...]
    small: int

    def by_interest(self) -> list[ChangedAccount]:
        """What moved first, then what is large."""
        return sorted(self.accounts, key=lambda one: (one.verdict not in ("worse", "better"), -abs(one.ns)))

    @property
    def named(self) -> tuple[ChangedAccount, ...]:
        """Those that did it."""
        return tuple(one for one in self.accounts if one.verdict == "worse" and not one.shifted)


def why(pairs: Ledgers, alpha: float, matters: float = 0.0) -> ChangedAccounts:
    """`matters`: a change below this share of the step is called the same, however sure it is. Raises
    `NotEnoughEvidence` for fewer than three pairs."""
    if len(pairs) < FEWEST:
        raise NotEnoughEvidence(
            f"{len(pairs)} pairs have ledgers on both sides: which account moved takes {FEWEST}.",
            "Run more pairs, with profiled steps.",
        )
    names = sorted({name for pair in pairs for side in pair for name in side})
    base, head = (np.array([[pair[side].get(name, 0.0) for name in names] for pair in pairs]) for side in (0, 1))
    wall = float(np.mean(base.sum(axis=1)))
    large = np.maximum(base.mean(axis=0), head.mean(axis=0))
    kept = large >= _SMALL * wall
    small = int(np.count_nonzero(~kept & (large > 0)))
    names = [name for name, keep in zip(names, kept, strict=True) if keep]
    base, head, large = base[:, kept], head[:, kept], large[kept]
    floor = _NOTHING * wall
    ratios = np.log((head + floor) / (base + floor))
    says = large >= _COMMON * wall
    common = np.median(ratios[:, says], axis=1) if np.count_nonzero(says) >= _FEW else np.zeros(len(pairs))
    own = ratios - common[:, None]
    rows = _rows(names, base, head, common, own, alpha, matters * wall)
    return ChangedAccounts(
        pairs=len(pairs), alpha=alpha, common=_common(common, alpha, matters), small=small,
        accounts=tuple(sorted(_shifted(rows), key=lambda one: -one.ns)),
    )  # fmt: skip


def _common(values: np.ndarray, alpha: float, matters: float) -> Common:
    middle, spread, freedom = float(values.mean()), float(values.std(ddof=1)), len(values) - 1
    error = spread / sqrt(len(values))
    wide = quantile(1 - alpha / 2, freedom) * error
    chance = two_sided(middle / error, freedom) if error else float(middle == 0)
    return Common(
        change=expm1(middle), low=expm1(middle - wide), high=expm1(middle + wide), chance=chance,
        slower=chance <= alpha and expm1(middle) > matters,
    )  # fmt: skip


def _rows(
    names: list[str],
    base: np.ndarray,
    head: np.ndarray,
    common: np.ndarray,
    own: np.ndarray,
    alpha: float,
    least_ns: float,
) -> list[ChangedAccount]:
    count = len(base)
    variances, freedom = moderated(own.var(axis=0, ddof=1), count - 1)
    errors = np.sqrt(variances / count)
    middle = own.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ts = np.where(errors > 0, middle / errors, np.where(middle == 0, 0.0, np.inf))
    chances = holm(np.array([two_sided(t, freedom) for t in ts]))
    # As wide as the strictest of Holm's steps: all of them hold together.
    wide = quantile(1 - alpha / 2 / max(1, len(names)), freedom) * errors
    rows: list[ChangedAccount] = []
    for at, name in enumerate(names):
        expected = float(np.mean(base[:, at] * np.exp(common)))
        ns = float(np.mean(head[:, at])) - expected
        sure = chances[at] <= alpha
        moved = sure and abs(ns) >= least_ns
        rows.append(
            ChangedAccount(
                account=name, before_ns=float(base[:, at].mean()), after_ns=float(head[:, at].mean()), ns=ns,
                change=expm1(float(middle[at])), low=expm1(float(middle[at] - wide[at])),
                high=exp(float(middle[at] + wide[at])) - 1, chance=float(chances[at]),
                verdict=("worse" if ns > 0 else "better") if moved else "same" if sure else "unknown",
            )
        )  # fmt: skip
    return rows


def holm(chances: Column) -> Column:
    """Each chance as it is among all (Holm 1979, Scandinavian Journal of Statistics 6(2))."""
    order = np.argsort(chances, kind="stable")
    times = np.arange(len(chances), 0, -1)
    adjusted = np.empty(len(chances))
    adjusted[order] = np.minimum(np.maximum.accumulate(chances[order] * times), 1.0)
    return adjusted


def _shifted(rows: list[ChangedAccount]) -> list[ChangedAccount]:
    """Where what grew and what shrank surely cancel, time only moved between them."""
    up = sum(one.ns for one in rows if one.verdict == "worse")
    down = -sum(one.ns for one in rows if one.verdict == "better")
    if not up or not down or abs(up - down) > _CANCELS * max(up, down):
        return rows
    return [msgspec.structs.replace(one, shifted=True) if one.verdict in ("worse", "better") else one for one in rows]
