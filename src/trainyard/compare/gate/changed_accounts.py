"""The accounts that caused a change: paired ledgers compared account by account, with one error rate for all accounts.

The statistic of an account in a pair is the log ratio of its time on head to that on base. The change common to all
accounts (clocks, power, another tenant of the machine) is their median and is subtracted first. Each account's mean is
then tested against its moderated variance (`moderated`), and the p-values are adjusted by Holm's method. Five pairs
suffice to identify an account; a rank test could not do that (2^-5 is more than 1 %). A pair is a run of the base and a
run of the head; an account is a category of time of a step's ledger, such as `compute/matmul`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, expm1, sqrt
from typing import Literal

import msgspec
import numpy as np

from trainyard.compare.gate.moderated_variance import Column, moderate_variances
from trainyard.errors import NotEnoughEvidence
from trainyard.stats.student_t import quantile, two_sided_p

MIN_PAIRS = 3
"""Smallest number of pairs with which a variance can be estimated."""
_MIN_SHARE = 1e-3
"""Fraction of the step: accounts below it on both sides are left out."""
_MIN_COMMON_SHARE = 1e-2
"""Fraction of the step: accounts below it are not used to estimate the common change."""
_MIN_COMMON_ACCOUNTS = 4
"""Smallest number of accounts with which a common change can be distinguished from the change of one account."""
_FLOOR_SHARE = 1e-4
"""Fraction of the step added to each account, so that the ratio of an account missing on one side has a logarithm."""
_MAX_NET_SHARE = 0.2
"""Largest net change, as a fraction of the larger of increase and decrease, at which time has only moved between
accounts."""

PairedLedgers = Sequence[tuple[Mapping[str, float], Mapping[str, float]]]
"""(base, head) of each pair: account -> ns per step."""


class ChangedAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one account. `ns`: ns per step, without the common change; `change`: relative change, with the
    confidence interval `low` to `high`; `p_value`: adjusted for the number of accounts. `shifted`: other
    accounts cancel its change: a kernel was renamed, fused, or booked to another account."""

    account: str
    before_ns: float
    after_ns: float
    ns: float
    change: float
    low: float
    high: float
    p_value: float
    verdict: Literal["worse", "better", "same", "unknown"]
    shifted: bool = False


class CommonChange(msgspec.Struct, frozen=True, kw_only=True):
    """The relative change common to all accounts. `slower`: whether it is a significant and relevant slowdown."""

    change: float
    low: float
    high: float
    p_value: float
    slower: bool


class ChangedAccounts(msgspec.Struct, frozen=True, kw_only=True):
    """`accounts`: the largest cost first. `small`: number of accounts too small to judge."""

    pairs: int
    alpha: float
    common: CommonChange
    accounts: tuple[ChangedAccount, ...]
    small: int

    def by_interest(self) -> list[ChangedAccount]:
        """Changed accounts first, then by the size of the change."""
        return sorted(self.accounts, key=lambda row: (row.verdict not in ("worse", "better"), -abs(row.ns)))

    @property
    def culprits(self) -> tuple[ChangedAccount, ...]:
        """The accounts that caused the slowdown."""
        return tuple(row for row in self.accounts if row.verdict == "worse" and not row.shifted)


def find_changed_accounts(pairs: PairedLedgers, alpha: float, matters: float = 0.0) -> ChangedAccounts:
    """Tests the change of every account, without the change common to all. `pairs`: (base, head) of each pair, account
    -> ns per step; `alpha`: error rate of all accounts together; `matters`: a change below this fraction of the step is
    judged the same, however significant. Raises `NotEnoughEvidence` for fewer than three pairs."""
    if len(pairs) < MIN_PAIRS:
        raise NotEnoughEvidence(
            f"{len(pairs)} pairs have ledgers on both sides, but finding the changed account needs {MIN_PAIRS}.",
            "Run more pairs, with profiled steps.",
        )
    names = sorted({name for pair in pairs for side in pair for name in side})
    # [pair, account]; an account that a side does not have is 0.
    base_ns, head_ns = (np.array([[pair[side].get(name, 0.0) for name in names] for pair in pairs]) for side in (0, 1))
    wall_ns = float(np.mean(base_ns.sum(axis=1)))
    larger_ns = np.maximum(base_ns.mean(axis=0), head_ns.mean(axis=0))
    is_large = larger_ns >= _MIN_SHARE * wall_ns
    small_count = int(np.count_nonzero(~is_large & (larger_ns > 0)))
    names = [name for name, keep in zip(names, is_large, strict=True) if keep]
    base_ns, head_ns, larger_ns = base_ns[:, is_large], head_ns[:, is_large], larger_ns[is_large]
    floor_ns = _FLOOR_SHARE * wall_ns
    # Log ratios, [pair, account]; the common change is their median over large accounts, [pair].
    ratios = np.log((head_ns + floor_ns) / (base_ns + floor_ns))
    is_common_evidence = larger_ns >= _MIN_COMMON_SHARE * wall_ns
    common_ratios = (
        np.median(ratios[:, is_common_evidence], axis=1)
        if np.count_nonzero(is_common_evidence) >= _MIN_COMMON_ACCOUNTS
        else np.zeros(len(pairs))
    )
    own_ratios = ratios - common_ratios[:, None]
    rows = _test_accounts(names, base_ns, head_ns, common_ratios, own_ratios, alpha, matters * wall_ns)
    return ChangedAccounts(
        pairs=len(pairs), alpha=alpha, common=_test_common_change(common_ratios, alpha, matters), small=small_count,
        accounts=tuple(sorted(_mark_shifted(rows), key=lambda row: -row.ns)),
    )  # fmt: skip


def _test_common_change(values: np.ndarray, alpha: float, matters: float) -> CommonChange:
    """The change common to all accounts, with its confidence interval. `values`: its log ratio in each pair; `matters`:
    the relative change from which it counts as slower."""
    # Student's t test of the mean, with n - 1 degrees of freedom.
    mean_ratio, deviation, freedom = float(values.mean()), float(values.std(ddof=1)), len(values) - 1
    standard_error = deviation / sqrt(len(values))
    half_width = quantile(1 - alpha / 2, freedom) * standard_error
    chance = two_sided_p(mean_ratio / standard_error, freedom) if standard_error else float(mean_ratio == 0)
    return CommonChange(
        change=expm1(mean_ratio), low=expm1(mean_ratio - half_width), high=expm1(mean_ratio + half_width),
        p_value=chance, slower=chance <= alpha and expm1(mean_ratio) > matters,
    )  # fmt: skip


def _test_accounts(
    names: list[str],
    base: np.ndarray,
    head: np.ndarray,
    common: np.ndarray,
    own_ratios: np.ndarray,
    alpha: float,
    least_ns: float,
) -> list[ChangedAccount]:
    """One row per account, with adjusted p-values. `base`, `head`: ns per step, and `own_ratios`: log ratios without
    the common change, all [pair, account]; `common`: log ratio common to all accounts in each pair; `least_ns`:
    smallest change that matters. `names`: of the accounts; `alpha`: family-wise error rate."""
    count = len(base)
    variances, freedom = moderate_variances(own_ratios.var(axis=0, ddof=1), count - 1)
    standard_errors = np.sqrt(variances / count)
    mean_ratios = own_ratios.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        t_statistics = np.where(
            standard_errors > 0, mean_ratios / standard_errors, np.where(mean_ratios == 0, 0.0, np.inf)
        )
    chances = adjust_by_holm(np.array([two_sided_p(t, freedom) for t in t_statistics]))
    # Intervals at the strictest step of Holm's method, so that they hold simultaneously.
    half_width = quantile(1 - alpha / 2 / max(1, len(names)), freedom) * standard_errors
    rows: list[ChangedAccount] = []
    for column, name in enumerate(names):
        expected = float(np.mean(base[:, column] * np.exp(common)))  # ns if only the common change affected it
        ns = float(np.mean(head[:, column])) - expected
        significant = chances[column] <= alpha
        relevant = significant and abs(ns) >= least_ns
        rows.append(
            ChangedAccount(
                account=name, before_ns=float(base[:, column].mean()), after_ns=float(head[:, column].mean()), ns=ns,
                change=expm1(float(mean_ratios[column])), low=expm1(float(mean_ratios[column] - half_width[column])),
                high=exp(float(mean_ratios[column] + half_width[column])) - 1, p_value=float(chances[column]),
                verdict=("worse" if ns > 0 else "better") if relevant else "same" if significant else "unknown",
            )
        )  # fmt: skip
    return rows


def adjust_by_holm(chances: Column) -> Column:
    """Adjusted p-values (n,) (Holm 1979, Scandinavian Journal of Statistics 6(2)). `chances`: p-values (n,) of n
    tests."""
    # The least p-value is multiplied by n, the next by n - 1, ...; none becomes less than one before it.
    order = np.argsort(chances, kind="stable")
    multipliers = np.arange(len(chances), 0, -1)
    adjusted = np.empty(len(chances))
    adjusted[order] = np.minimum(np.maximum.accumulate(chances[order] * multipliers), 1.0)
    return adjusted


def _mark_shifted(rows: list[ChangedAccount]) -> list[ChangedAccount]:
    """Mark the changed accounts as shifted if their increases and decreases cancel: time only moved between them."""
    slower_ns = sum(row.ns for row in rows if row.verdict == "worse")
    faster_ns = -sum(row.ns for row in rows if row.verdict == "better")
    if not slower_ns or not faster_ns or abs(slower_ns - faster_ns) > _MAX_NET_SHARE * max(slower_ns, faster_ns):
        return rows
    return [msgspec.structs.replace(row, shifted=True) if row.verdict in ("worse", "better") else row for row in rows]
