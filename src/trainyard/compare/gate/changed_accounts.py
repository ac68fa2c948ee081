"""The accounts that caused a change: paired ledgers compared account by account, with one error rate for all accounts.

The statistic of an account in a pair is the log ratio of its time on head to that on base. The change common to all
accounts (clocks, power, another tenant of the machine) is their median and is subtracted first. Each account's mean is
then tested against its moderated variance (`moderated`), and the p-values are adjusted by Holm's method. Five pairs
suffice to identify an account; a rank test could not do that (2^-5 is more than 1 %).
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
"""Smallest number of pairs with which a variance can be estimated."""
_SMALL = 1e-3
"""Fraction of the step: accounts below it on both sides are left out."""
_COMMON = 1e-2
"""Fraction of the step: accounts below it are not used to estimate the common change."""
_FEW = 4
"""Smallest number of accounts with which a common change can be distinguished from the change of one account."""
_NOTHING = 1e-4
"""Fraction of the step added to each account, so that the ratio of an account missing on one side has a logarithm."""
_CANCELS = 0.2
"""Largest net change, as a fraction of the larger of increase and decrease, at which time is taken to have only moved
between accounts."""

Ledgers = Sequence[tuple[Mapping[str, float], Mapping[str, float]]]
"""(base, head) of each pair: account -> ns per step."""


class ChangedAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one account. `ns`: ns per step, without the common change; `change`: relative change, with the
    confidence interval `low` to `high`; `chance`: p-value, adjusted for the number of accounts. `shifted`: other
    accounts cancel its change: a kernel was renamed, fused, or booked to another account."""

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
    """The relative change common to all accounts. `slower`: whether it is a significant and relevant slowdown."""

    change: float
    low: float
    high: float
    chance: float
    slower: bool


class ChangedAccounts(msgspec.Struct, frozen=True, kw_only=True):
    """`accounts`: the largest cost first. `small`: number of accounts too small to judge."""

    pairs: int
    alpha: float
    common: Common
    accounts: tuple[ChangedAccount, ...]
    small: int

    def by_interest(self) -> list[ChangedAccount]:
        """Changed accounts first, then by the size of the change."""
        return sorted(self.accounts, key=lambda row: (row.verdict not in ("worse", "better"), -abs(row.ns)))

    @property
    def named(self) -> tuple[ChangedAccount, ...]:
        """The accounts that caused the slowdown."""
        return tuple(row for row in self.accounts if row.verdict == "worse" and not row.shifted)


def find_changed_accounts(pairs: Ledgers, alpha: float, matters: float = 0.0) -> ChangedAccounts:
    """Test every account. `matters`: a change below this fraction of the step is judged the same, however significant.
    Raises `NotEnoughEvidence` for fewer than three pairs."""
    if len(pairs) < FEWEST:
        raise NotEnoughEvidence(
            f"{len(pairs)} pairs have ledgers on both sides, but finding the changed account needs {FEWEST}.",
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
    used = large >= _COMMON * wall
    common = np.median(ratios[:, used], axis=1) if np.count_nonzero(used) >= _FEW else np.zeros(len(pairs))
    own = ratios - common[:, None]
    rows = _rows(names, base, head, common, own, alpha, matters * wall)
    return ChangedAccounts(
        pairs=len(pairs), alpha=alpha, common=_common(common, alpha, matters), small=small,
        accounts=tuple(sorted(_mark_shifted(rows), key=lambda row: -row.ns)),
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
    # Intervals at the strictest step of Holm's method, so that they hold simultaneously.
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
    """Adjusted p-values (n,) (Holm 1979, Scandinavian Journal of Statistics 6(2))."""
    order = np.argsort(chances, kind="stable")
    times = np.arange(len(chances), 0, -1)
    adjusted = np.empty(len(chances))
    adjusted[order] = np.minimum(np.maximum.accumulate(chances[order] * times), 1.0)
    return adjusted


def _mark_shifted(rows: list[ChangedAccount]) -> list[ChangedAccount]:
    """Mark the changed accounts as shifted if their increases and decreases cancel: time only moved between them."""
    up = sum(row.ns for row in rows if row.verdict == "worse")
    down = -sum(row.ns for row in rows if row.verdict == "better")
    if not up or not down or abs(up - down) > _CANCELS * max(up, down):
        return rows
    return [msgspec.structs.replace(row, shifted=True) if row.verdict in ("worse", "better") else row for row in rows]
