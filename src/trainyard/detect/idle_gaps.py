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
from trainyard.detect.finding_text import finding, matters, mean_per_step
from trainyard.detect.host_blame import calls, describe_calls
from trainyard.detect.kernel_storms import storms, within
from trainyard.events import I8, I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger

OPTIMIZER_KERNELS = 50
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


_LEAST = 0.01  # of the step; smaller than for other rules: a healthy step has no such call
_BY_CAUSE = {"sync": Claimant.SYNC, "alloc": Claimant.ALLOC, "gc": Claimant.GC, "compile": Claimant.COMPILE}
_cache: WeakKeyDictionary[Booked, I8] = WeakKeyDictionary()


def claimants(booked: Booked) -> I8:
    """The `Claimant` of each idle interval of a rank."""
    if booked not in _cache:
        _cache[booked] = _claimants(booked)
    return _cache[booked]


def cost(ledger: Ledger, events: Sequence[Booked] | None, claimant: Claimant) -> int:
    """ns a step that `claimant` claims. Without events, the total of its accounts in the ledger."""
    if events:
        return mean_per_step(events, (int(rank.idle.ns[rows(rank, claimant)].sum()) for rank in events))
    return sum(ns for account, ns in ledger.by_account().items() if _by_account(account) == claimant)


def host_stop_finding(
    rule: str,
    cause: str,
    ledger: Ledger,
    events: Sequence[Booked] | None,
    subject: str,
    remedy: str,
    unseen: float = 0.7,
) -> Sequence[Finding]:
    """A finding for calls booked as `launch_gap/cause` that stop the host, if they cost at least 1 % of the step.
    `unseen`: the certainty if there is only a ledger."""
    account, ns = Account("launch_gap", cause), cost(ledger, events, _BY_CAUSE[cause])
    if not matters(ledger, ns, _LEAST):
        return ()
    evidence = describe_calls(events, [calls(rank, account) for rank in events]) if events else "from the ledger alone"
    sure = 0.9 if events else unseen
    return finding(rule, ledger, account, ns, subject, evidence=evidence, remedy=remedy, sure=sure)


def rows(booked: Booked, claimant: Claimant) -> I64:
    """The idle intervals in full steps that `claimant` claims."""
    return np.flatnonzero((claimants(booked) == claimant) & booked.full(booked.idle.start))


def plain_optimizer(booked: Booked) -> bool:
    """Whether the parameter update runs as many kernels, none of them fused."""
    optimizer = booked.keys(lambda account, _: (account.kind, account.what) == ("compute", "optimizer"))
    own = np.flatnonzero(optimizer[booked.key] & booked.begins & booked.full(booked.start))
    fused = booked.names(lambda name: "fused" in name.lower())
    return len(own) >= OPTIMIZER_KERNELS * booked.steps and not fused[booked.name[own]].any()


def _by_account(account: Account) -> Claimant:
    return _BY_CAUSE.get(account.what, Claimant.HOST) if account.kind == "launch_gap" else Claimant.NOBODY


def _claimants(booked: Booked) -> I8:
    idle = booked.idle
    by_key = np.array([_by_account(account) for account, _ in booked.pairs], np.int8)
    claimant = by_key[idle.key] if len(idle.key) else np.empty(0, np.int8)
    refill = _refills(booked, claimant)
    claimant[refill] = Claimant.SYNC
    if plain_optimizer(booked):
        phase = booked.keys(lambda _, phase: phase == "optimizer")
        claimant[(claimant == Claimant.HOST) & phase[idle.key]] = Claimant.OPTIMIZER
    runs = storms(booked)
    claimant[(claimant == Claimant.HOST) & within([storm for storm in runs if storm.syncs], idle.start)] = Claimant.SYNC
    claimant[(claimant == Claimant.HOST) & within(runs, idle.start)] = Claimant.TINY
    return claimant


def _refills(booked: Booked, claimant: I8) -> Mask:
    """Host time in gaps that began with a sync, if the sync waited longer than the gap lasted: without the sync, the
    host would have been that far ahead and there would be no gap."""
    idle = booked.idle
    refill = np.zeros(len(claimant), bool)
    if not booked.on_device or not len(claimant) or not len(booked.events.host):
        return refill
    first = np.concatenate([[True], idle.start[1:] > idle.stop[:-1]])
    number = np.cumsum(first) - 1
    begins, ends = idle.start[first], idle.stop[np.concatenate([np.flatnonzero(first)[1:] - 1, [len(claimant) - 1]])]
    call = idle.host[first]
    host = booked.events.host
    waited = np.where(call >= 0, begins - host.start[call], 0)
    led = (claimant[first] == Claimant.SYNC) & (waited >= ends - begins)
    return led[number] & (claimant == Claimant.HOST)
