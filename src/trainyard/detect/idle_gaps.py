"""Each stretch of launch gap to the one rule that answers for it, so that no two rules claim the same time.

A call or runtime that stops the host answers for its own stretches. A sync answers for the refilling after it too, as
far as the host would have been ahead without it. Between the kernels of an optimizer that is not fused the optimizer
answers, within a run of tiny kernels the run does. What is left is the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from weakref import WeakKeyDictionary

import numpy as np

from trainyard.booked import Booked, Mask
from trainyard.detect.finding_text import each_step, finding, matters
from trainyard.detect.host_blame import calls, told
from trainyard.detect.kernel_storms import storms, within
from trainyard.events import I8, I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger

OPTIMIZER_KERNELS = 50
"""A step: a fused or foreach optimizer launches a handful for each thousand tensors or so, a plain one several a
tensor."""


class Answers(IntEnum):
    """Who answers for a stretch; `NOBODY`: it is no launch gap."""

    NOBODY = 0
    HOST = 1
    SYNC = 2
    ALLOC = 3
    GC = 4
    COMPILE = 5
    OPTIMIZER = 6
    TINY = 7


_LEAST = 0.01  # smaller than elsewhere: a healthy step has none at all
_BY_WHAT = {"sync": Answers.SYNC, "alloc": Answers.ALLOC, "gc": Answers.GC, "compile": Answers.COMPILE}
_known: WeakKeyDictionary[Booked, I8] = WeakKeyDictionary()


def answers(booked: Booked) -> I8:
    """For each idle stretch of a rank, its `Answers`."""
    if booked not in _known:
        _known[booked] = _answers(booked)
    return _known[booked]


def cost(ledger: Ledger, events: Sequence[Booked] | None, who: Answers) -> int:
    """ns a step that `who` answers for; from a ledger alone, what stands on its account."""
    if events:
        return each_step(events, (int(rank.idle.ns[rows(rank, who)].sum()) for rank in events))
    return sum(ns for account, ns in ledger.by_account().items() if _by_account(account) == who)


def stopped(
    rule: str,
    what: str,
    ledger: Ledger,
    events: Sequence[Booked] | None,
    subject: str,
    remedy: str,
    unseen: float = 0.7,
) -> Sequence[Finding]:
    """The finding that calls booked as `launch_gap/what` stop the host, where they cost a hundredth of the step.
    `unseen`: how sure that is of a ledger alone."""
    account, ns = Account("launch_gap", what), cost(ledger, events, _BY_WHAT[what])
    if not matters(ledger, ns, _LEAST):
        return ()
    evidence = told(events, [calls(rank, account) for rank in events]) if events else "from the ledger alone"
    sure = 0.9 if events else unseen
    return finding(rule, ledger, account, ns, subject, evidence=evidence, remedy=remedy, sure=sure)


def rows(booked: Booked, who: Answers) -> I64:
    """The idle stretches in full steps that `who` answers for."""
    return np.flatnonzero((answers(booked) == who) & booked.full(booked.idle.start))


def plain_optimizer(booked: Booked) -> bool:
    """Whether the parameter update is many kernels and none of them fused."""
    optimizer = booked.keys(lambda account, _: (account.kind, account.what) == ("compute", "optimizer"))
    own = np.flatnonzero(optimizer[booked.key] & booked.begins & booked.full(booked.start))
    fused = booked.names(lambda name: "fused" in name.lower())
    return len(own) >= OPTIMIZER_KERNELS * booked.steps and not fused[booked.name[own]].any()


def _by_account(account: Account) -> Answers:
    return _BY_WHAT.get(account.what, Answers.HOST) if account.kind == "launch_gap" else Answers.NOBODY


def _answers(booked: Booked) -> I8:
    idle = booked.idle
    by_key = np.array([_by_account(account) for account, _ in booked.pairs], np.int8)
    who = by_key[idle.key] if len(idle.key) else np.empty(0, np.int8)
    refill = _refills(booked, who)
    who[refill] = Answers.SYNC
    if plain_optimizer(booked):
        phase = booked.keys(lambda _, phase: phase == "optimizer")
        who[(who == Answers.HOST) & phase[idle.key]] = Answers.OPTIMIZER
    found = storms(booked)
    who[(who == Answers.HOST) & within([storm for storm in found if storm.syncs], idle.start)] = Answers.SYNC
    who[(who == Answers.HOST) & within(found, idle.start)] = Answers.TINY
    return who


def _refills(booked: Booked, who: I8) -> Mask:
    """The host's stretches of a gap that began with a sync, where the sync waited longer than the gap lasted: without
    it the host would have been that far ahead, and the gap would not be."""
    idle = booked.idle
    refill = np.zeros(len(who), bool)
    if not booked.on_device or not len(who) or not len(booked.events.host):
        return refill
    first = np.concatenate([[True], idle.start[1:] > idle.stop[:-1]])
    number = np.cumsum(first) - 1
    begins, ends = idle.start[first], idle.stop[np.concatenate([np.flatnonzero(first)[1:] - 1, [len(who) - 1]])]
    call = idle.host[first]
    host = booked.events.host
    waited = np.where(call >= 0, begins - host.start[call], 0)
    led = (who[first] == Answers.SYNC) & (waited >= ends - begins)
    return led[number] & (who == Answers.HOST)
