"""Assigns every launch gap to one rule, so that no two rules claim the same time.

A call that stops the host claims its own gaps. A sync also claims the time in which the host refills the launch queue
afterwards, if the host would have been that far ahead without the sync. Gaps between the kernels of an unfused
optimizer belong to the optimizer, gaps within a run of tiny kernels to that run, and all others to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from weakref import WeakKeyDictionary

import numpy as np

from trainyard.booked import Booked, Mask
from trainyard.change import Change
from trainyard.detect.finding_text import finding, matters, mean_per_step
from trainyard.detect.host_blame import describe_calls, idle_causing_calls
from trainyard.detect.kernel_storms import find_storms, is_in_storms
from trainyard.events import I8, I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger

MIN_UNFUSED_KERNELS = 50
"""Kernels a step from which an optimizer counts as unfused: a fused or foreach optimizer launches a handful for about a
thousand tensors, a plain one several per tensor."""


class Claimant(IntEnum):
    """The rule that claims an idle interval; `NOBODY`: it is not a launch gap."""

    NOBODY = 0
    HOST = 1
    SYNC = 2
    ALLOC = 3
    GC = 4
    COMPILE = 5
    OPTIMIZER = 6
    TINY = 7


_MIN_STEP_FRACTION = 0.01  # of the step; smaller than for other rules: a healthy step has no such call
_CLAIMANT_OF_CAUSE = {"sync": Claimant.SYNC, "alloc": Claimant.ALLOC, "gc": Claimant.GC, "compile": Claimant.COMPILE}
"""Subdivision of the account launch_gap -> the rule that claims it."""
_claimants_cache: WeakKeyDictionary[Booked, I8] = WeakKeyDictionary()


def claimants(booked: Booked) -> I8:
    """The `Claimant` of each idle interval of a rank."""
    if booked not in _claimants_cache:
        _claimants_cache[booked] = _assign_claimants(booked)
    return _claimants_cache[booked]


def claimed_ns(ledger: Ledger, ranks: Sequence[Booked] | None, claimant: Claimant) -> int:
    """ns a step that `claimant` claims. Without `ranks`, the total of its accounts in the ledger."""
    if ranks:
        return mean_per_step(ranks, (int(rank.idle.ns[claimed_idle_rows(rank, claimant)].sum()) for rank in ranks))
    return sum(ns for account, ns in ledger.by_account().items() if _claimant_of(account) == claimant)


def host_stop_finding(
    rule: str,
    cause: str,
    ledger: Ledger,
    ranks: Sequence[Booked] | None,
    subject: str,
    remedy: str,
    sure_without_ranks: float = 0.7,
) -> Sequence[Finding]:
    """A finding for calls booked as `launch_gap/cause` that stop the host, if they cost at least 1 % of the step.
    `subject` and `remedy`: as in `finding`; `sure_without_ranks`: the certainty if there is only a ledger."""
    account, ns = Account("launch_gap", cause), claimed_ns(ledger, ranks, _CLAIMANT_OF_CAUSE[cause])
    if not matters(ledger, ns, _MIN_STEP_FRACTION):
        return ()
    rows_by_rank = [idle_causing_calls(rank, account) for rank in ranks or ()]
    evidence = describe_calls(ranks, rows_by_rank) if ranks else "from the ledger alone"
    sure = 0.9 if ranks else sure_without_ranks
    change = Change(text=f"{account}=0")
    return finding(rule, ledger, account, ns, subject, evidence=evidence, remedy=remedy, sure=sure, change=change)


def claimed_idle_rows(booked: Booked, claimant: Claimant) -> I64:
    """Rows in `booked.idle` that lie in full steps and that `claimant` claims."""
    return np.flatnonzero((claimants(booked) == claimant) & booked.full(booked.idle.start))


def has_unfused_optimizer(booked: Booked) -> bool:
    """Whether the parameter update runs as many kernels, none of them fused."""
    is_optimizer_key = booked.keys(lambda account, _: (account.kind, account.what) == ("compute", "optimizer"))
    kernels = np.flatnonzero(is_optimizer_key[booked.key] & booked.begins & booked.full(booked.start))
    is_fused_name = booked.names(lambda name: "fused" in name.lower())
    return len(kernels) >= MIN_UNFUSED_KERNELS * booked.steps and not is_fused_name[booked.name[kernels]].any()


def _claimant_of(account: Account) -> Claimant:
    return _CLAIMANT_OF_CAUSE.get(account.what, Claimant.HOST) if account.kind == "launch_gap" else Claimant.NOBODY


def _assign_claimants(booked: Booked) -> I8:
    """The `Claimant` of each idle interval: by its account, then host gaps that a more specific rule explains."""
    idle = booked.idle
    claimant_by_key = np.array([_claimant_of(account) for account, _ in booked.pairs], np.int8)
    claimant = claimant_by_key[idle.key] if len(idle.key) else np.empty(0, np.int8)
    is_refill = _is_refill(booked, claimant)
    claimant[is_refill] = Claimant.SYNC
    if has_unfused_optimizer(booked):
        is_optimizer_phase = booked.keys(lambda _, is_optimizer_phase: is_optimizer_phase == "optimizer")
        claimant[(claimant == Claimant.HOST) & is_optimizer_phase[idle.key]] = Claimant.OPTIMIZER
    storms = find_storms(booked)
    sync_storms = [storm for storm in storms if storm.syncs]
    claimant[(claimant == Claimant.HOST) & is_in_storms(sync_storms, idle.start)] = Claimant.SYNC
    claimant[(claimant == Claimant.HOST) & is_in_storms(storms, idle.start)] = Claimant.TINY
    return claimant


def _is_refill(booked: Booked, claimant: I8) -> Mask:
    """Mask over idle intervals: host time in gaps that began with a sync, if the sync waited longer than the gap
    lasted. Without it, the host would have been that far ahead and there would be no gap. `claimant`: by account."""
    # Adjacent idle intervals form one gap.
    idle = booked.idle
    none = np.zeros(len(claimant), bool)
    if not booked.on_device or not len(claimant) or not len(booked.events.host):
        return none
    opens_gap = np.concatenate([[True], idle.start[1:] > idle.stop[:-1]])
    gap_of_row = np.cumsum(opens_gap) - 1
    last_row = np.concatenate([np.flatnonzero(opens_gap)[1:] - 1, [len(claimant) - 1]])
    gap_start, gap_stop = idle.start[opens_gap], idle.stop[last_row]
    open_span = idle.host[opens_gap]
    host = booked.events.host
    waited_ns = np.where(open_span >= 0, gap_start - host.start[open_span], 0)
    refilled = (claimant[opens_gap] == Claimant.SYNC) & (waited_ns >= gap_stop - gap_start)
    return refilled[gap_of_row] & (claimant == Claimant.HOST)
