"""Assigns every launch gap to one rule, so that no two rules claim the same time.

A launch gap is an interval of `Booked.idle` with an account `launch_gap/...`: the device is idle, mostly because the
host has not launched work. The rule that reports it is its claimant.

A call that stops the host claims its own gaps. A sync also claims the time in which the host refills the launch queue
afterwards, if the host would have been that far ahead without the sync. Gaps between the kernels of an unfused
optimizer belong to the optimizer, gaps within a run of tiny kernels to that run, and all others to the host.
Initialisation, compilation at first use and the edge of the profile are not part of the steady state: they belong to
the rule start_up, and no other rule counts them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from weakref import WeakKeyDictionary

import numpy as np

from trainyard import words
from trainyard.booked import Booked, Mask
from trainyard.change import Change
from trainyard.detect.confidence import confidence, doubt_of_recurrence
from trainyard.detect.finding_text import finding, matters, mean_per_step
from trainyard.detect.host_blame import describe_calls, idle_causing_calls
from trainyard.detect.kernel_storms import find_storms, is_in_storms
from trainyard.detect.largest_intervals import LargestIntervals, largest_idle
from trainyard.events import I8, I64
from trainyard.finding import Finding
from trainyard.ledger import WINDOW, Account, Ledger

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

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
    START_UP = 8


_MIN_STEP_FRACTION = 0.01  # of the step; smaller than for other rules: a healthy step has no such call
_CLAIMANT_OF_CAUSE = {
    "sync": Claimant.SYNC, "alloc": Claimant.ALLOC, "gc": Claimant.GC, "compile": Claimant.COMPILE,
    "init": Claimant.START_UP, "edge": Claimant.START_UP,
}  # fmt: skip
"""Subdivision of the account launch_gap -> the rule that claims it."""
_MODULE_LOAD = re.compile(r"^(cu|hip)(Module|Library)Load")
_FIRST_PART_OF_WINDOW = 0.25
"""Fraction of a window without step marks in which compilation counts as start-up."""
_claimants_cache: WeakKeyDictionary[Booked, I8] = WeakKeyDictionary()


def claimants(booked: Booked) -> I8:
    """The `Claimant` of each interval of `booked.idle`. Computed once per profile and cached."""
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
    remedy_for: Callable[[Sequence[str]], str],
    sure_without_ranks: float = 0.7,
) -> Sequence[Finding]:
    """A finding for calls booked as `launch_gap/cause` that stop the host, if they cost at least 1 % of the step; else
    nothing.

    `rule`: name of the rule that reports it. `cause`: a key of `_CLAIMANT_OF_CAUSE`. `ranks`: booked profiles, None if
    only a ledger is available. `subject`: the sentence up to the cost. `remedy_for`: maps the names of the calls, the
    most frequent first, to the remedy. `sure_without_ranks`: the confidence if there is only a ledger.
    """
    account, claimant = Account("launch_gap", cause), _CLAIMANT_OF_CAUSE[cause]
    ns = claimed_ns(ledger, ranks, claimant)
    if not matters(ledger, ns, _MIN_STEP_FRACTION):
        return ()
    change = Change(text=f"{account}=0")
    if not ranks:
        return finding(
            rule,
            ledger,
            account,
            ns,
            subject,
            evidence="from the ledger alone",
            remedy=remedy_for(()),
            confidence=sure_without_ranks,
            change=change,
        )
    rows_by_rank = [idle_causing_calls(rank, account) for rank in ranks]
    largest = largest_idle(ranks, [claimed_idle_rows(rank, claimant) for rank in ranks])
    return finding(
        rule,
        ledger,
        account,
        ns,
        subject,
        evidence=describe_calls(ranks, rows_by_rank),
        remedy=remedy_for(_names_of_calls(ranks, rows_by_rank)),
        confidence=confidence(_doubt_of(largest)),
        largest=largest,
        change=change,
    )


def _doubt_of(largest: LargestIntervals | None) -> float:
    """The doubt that the cost recurs in each step; 0 if its intervals are unknown."""
    return doubt_of_recurrence(largest.steps_with, largest.steps, largest.is_single) if largest else 0.0


def _names_of_calls(ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> list[str]:
    """The names of the spans `rows_by_rank` (host rows of each rank), the most frequent first."""
    counts: Counter[str] = Counter()
    for rank, rows in zip(ranks, rows_by_rank):
        numbers, times = np.unique(rank.events.host.name[rows], return_counts=True)
        counts.update({rank.events.names[number]: count for number, count in zip(numbers.tolist(), times.tolist())})
    return [name for name, _ in counts.most_common()]


def recompiles(booked: Booked) -> bool:
    """Whether the host compiles after the first step of the trace (without marks: after the first quarter of the
    window). Loading a module there is the first use of a kernel, unless it recurs in several steps."""
    host, part = booked.events.host, booked.parts[0]
    first_stop = min((mark.stop for mark in booked.events.marks), default=part.stop)
    if not booked.events.marks and part.label == WINDOW:
        first_stop = part.start + int(_FIRST_PART_OF_WINDOW * (part.stop - part.start))
    # The host runs ahead of the device: calls count by their own time, not by the step that the device is in.
    is_compile = np.array([text == "launch_gap/compile" for text in booked.causes] + [False], bool)[booked.cause]
    rows = np.flatnonzero(is_compile & (host.start >= first_stop))
    is_load = booked.names(_MODULE_LOAD.match)[host.name[rows]]
    is_load |= is_compile[host.parent[rows]] & (host.parent[rows] >= 0)  # part of another compilation: counted there
    return bool((~is_load).any()) or len(np.unique(booked.step_of(host.start[rows]))) > 1


def claimed_idle_rows(booked: Booked, claimant: Claimant) -> I64:
    """Rows in `booked.idle` that lie in full steps and that `claimant` claims."""
    return np.flatnonzero((claimants(booked) == claimant) & booked.full(booked.idle.start))


def has_unfused_optimizer(booked: Booked) -> bool:
    """Whether the parameter update runs at least `MIN_UNFUSED_KERNELS` kernels a step, none of them named as fused."""
    is_optimizer_key = booked.keys(lambda account, _: (account.kind, account.what) == ("compute", "optimizer"))
    kernels = np.flatnonzero(is_optimizer_key[booked.key] & booked.begins & booked.full(booked.start))
    is_fused_name = booked.names(lambda name: "fused" in name.lower())
    return len(kernels) >= MIN_UNFUSED_KERNELS * booked.steps and not is_fused_name[booked.name[kernels]].any()


def _claimant_of(account: Account) -> Claimant:
    """The rule that claims idle time on an account, by the account alone."""
    return _CLAIMANT_OF_CAUSE.get(account.what, Claimant.HOST) if account.kind == "launch_gap" else Claimant.NOBODY


def _assign_claimants(booked: Booked) -> I8:
    """The `Claimant` of each idle interval: by its account, then host gaps that a more specific rule explains."""
    idle = booked.idle
    claimant_by_key = np.array([_claimant_of(account) for account, _ in booked.pairs], np.int8)
    claimant = claimant_by_key[idle.key] if len(idle.key) else np.empty(0, np.int8)
    if not recompiles(booked):
        claimant[claimant == Claimant.COMPILE] = Claimant.START_UP
    is_refill = _is_refill(booked, claimant)
    claimant[is_refill] = Claimant.SYNC
    if has_unfused_optimizer(booked):
        is_optimizer_phase = booked.keys(lambda _, phase: phase == "optimizer")
        claimant[(claimant == Claimant.HOST) & is_optimizer_phase[idle.key]] = Claimant.OPTIMIZER
    storms = find_storms(booked)
    sync_storms = [storm for storm in storms if storm.syncs]
    claimant[(claimant == Claimant.HOST) & is_in_storms(sync_storms, idle.start)] = Claimant.SYNC
    claimant[(claimant == Claimant.HOST) & is_in_storms(storms, idle.start)] = Claimant.TINY
    return claimant


def _is_refill(booked: Booked, claimant: I8) -> Mask:
    """Mask over `booked.idle`: host time in gaps that would not exist without the syncs before them.

    A sync that waited takes a lead from the host: the time of the wait. Without it, the host would be that far ahead,
    and each later gap would use up its length of the lead. `claimant`: of each idle interval, by its account alone.
    """
    # Adjacent idle intervals form one gap.
    idle = booked.idle
    none = np.zeros(len(claimant), bool)
    if not booked.on_device or not len(claimant) or not len(booked.events.host):
        return none
    opens_gap = np.concatenate([[True], idle.start[1:] > idle.stop[:-1]])
    gap_of_row = np.cumsum(opens_gap) - 1  # number of the gap of each idle interval
    gap_start = idle.start[opens_gap]
    open_span = idle.host[opens_gap]  # of each gap: the host row open at its start, -1 for none
    host = booked.events.host
    begins_with_sync = (claimant[opens_gap] == Claimant.SYNC) & (open_span >= 0)
    waited_ns = np.where(begins_with_sync, gap_start - host.start[open_span], 0)
    # A lead of the host does not shorten the time after a launch.
    on_host = booked.keys(lambda account, _: account.what not in words.LAUNCHED_GAPS)[idle.key]
    host_ns = np.bincount(gap_of_row, weights=np.where(on_host, idle.stop - idle.start, 0)).astype(np.int64)
    # The lead after each gap is max(0, lead before + waited - gap). A lead that was never cut at 0 since the last sync
    # covers the whole gap: the running sum of changes is then not below its lowest value before.
    change_ns = np.cumsum(waited_ns - host_ns)
    lowest_before = np.minimum.accumulate(np.concatenate([[0], change_ns]))[:-1]
    is_filled = change_ns >= lowest_before
    return is_filled[gap_of_row] & on_host & (claimant == Claimant.HOST)
