"""launch_bound: the device is idle because the host has not given it work.

What it does: sums the launch gaps that no more specific rule claims (syncs, allocation, garbage collection,
compilation, the optimizer, runs of tiny kernels). A straggler's gaps are left to the straggler rule.
Why it matters: faster kernels gain nothing while the host is the bottleneck.
Example: 168 ms of a 222 ms step pass while the host is inside framework and driver launch code.
Remedy: fewer, larger kernels (compile, CUDA graphs), and less Python between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units, words
from trainyard.booked import Booked
from trainyard.detect.communication.straggler import culprit_of
from trainyard.detect.finding_text import finding, matters, mean_per_step, sum_by_key
from trainyard.detect.host_blame import time_by_culprit, top_culprits
from trainyard.detect.idle_gaps import Claimant, rows
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_LEAST = 0.03
_REMEDIES = {
    "python": "Move Python out of the step: compile it, or do its work ahead of time.",
    "launch": "Launch fewer, larger kernels: torch.compile, CUDA graphs, fused or foreach optimizers.",
    "queue": "Work was launched but started late: check launch latency, stream priorities and dependencies.",
    "stream_wait": "A stream waits for another one: check the events between them.",
}
_BUSY = ("python", "launch")
"""Gaps in which the host is busy; in the others the work is already launched."""
_OWN_RULES = ("sync", "alloc", "gc", "compile")


class LaunchBound:
    rule = "launch_bound"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        late = culprit_of(ledger, events)
        ranks = [rank for rank in events or () if rank.events.rank != late]
        gaps = _of_ranks(ranks) if ranks else _of_ledger(ledger)
        cost = sum(gaps.values())
        if not matters(ledger, cost, _LEAST):
            return ()
        account = max(gaps, key=lambda account: gaps[account])
        causes = ", ".join(
            f"{_label(account)} {units.show_time(ns)}"
            for account, ns in sorted(gaps.items(), key=lambda item: -item[1])[:3]
        )
        return finding(
            self.rule,
            ledger,
            account,
            cost,
            f"Launch gaps, mostly {_label(account)}, cost",
            evidence=(f"without rank {late}, which arrives late: " if ranks and late is not None else "")
            + causes
            + (_where(ranks) if account.what in _BUSY else ""),
            remedy=_REMEDIES[account.what],
            sure=0.9,
        )


def _of_ledger(ledger: Ledger) -> dict[Account, int]:
    return {
        account: ns
        for account, ns in ledger.by_account().items()
        if account.kind == "launch_gap" and account.what not in _OWN_RULES
    }


def _of_ranks(ranks: Sequence[Booked]) -> dict[Account, int]:
    totals: dict[Account, int] = {}
    for rank in ranks:
        own = rows(rank, Claimant.HOST)
        for key, ns in enumerate(sum_by_key(rank.idle.key[own], rank.idle.ns[own])):
            if ns:
                account = rank.pairs[key][0]
                totals[account] = totals.get(account, 0) + ns
    return {account: mean_per_step(ranks, [ns]) for account, ns in totals.items()}


def _where(ranks: Sequence[Booked]) -> str:
    culprits = top_culprits(
        [time_by_culprit(rank, rank.idle.host[own], rank.idle.ns[own]) for rank in ranks for own in [_busy_host(rank)]],
        sum(rank.steps for rank in ranks),
    )
    return "; mostly in " + ", ".join(f"{name} ({units.show_time(ns)})" for name, ns in culprits) if culprits else ""


def _busy_host(booked: Booked) -> I64:
    """The gaps in which the host had not yet launched the next work."""
    own = rows(booked, Claimant.HOST)
    return own[booked.keys(lambda account, _: account.what in _BUSY)[booked.idle.key[own]]]


def _label(account: Account) -> str:
    return words.GAPS[account.what].label.removeprefix("Gap: ")
