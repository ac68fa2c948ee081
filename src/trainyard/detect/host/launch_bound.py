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
from trainyard.change import RowChange
from trainyard.detect.communication.straggler import culprit_of
from trainyard.detect.finding_text import finding, matters, mean_per_step, sum_by_key
from trainyard.detect.host_blame import time_by_culprit, top_culprits
from trainyard.detect.idle_gaps import Claimant, claimed_idle_rows
from trainyard.detect.row_changes import row_change
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_MIN_STEP_FRACTION = 0.03
_REMEDIES = {
    "python": "Move Python out of the step: compile it, or do its work ahead of time.",
    "launch": "Launch fewer, larger kernels: torch.compile, CUDA graphs, fused or foreach optimizers.",
    "queue": "Work was launched but started late: check launch latency, stream priorities and dependencies.",
    "stream_wait": "A stream waits for another one: check the events between them.",
}
_HOST_BUSY = ("python", "launch")
"""Subdivisions of launch_gap in which the host is busy; in the others the work is already launched."""
_CLAIMED_BY_OTHER_RULES = ("sync", "alloc", "gc", "compile")
"""Subdivisions of launch_gap with a rule of their own."""


class LaunchBound:
    rule = "launch_bound"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """Idle time of the device that no other rule claims, without the rank that makes the others wait."""
        late = culprit_of(ledger, ranks)
        other_ranks = [rank for rank in ranks or () if rank.events.rank != late]
        gap_ns = _gaps_from_ranks(other_ranks) if other_ranks else _gaps_from_ledger(ledger)
        cost_ns = sum(gap_ns.values())
        if not matters(ledger, cost_ns, _MIN_STEP_FRACTION):
            return ()
        account = max(gap_ns, key=lambda account: gap_ns[account])
        causes = ", ".join(
            f"{_label(account)} {units.show_time(ns)}"
            for account, ns in sorted(gap_ns.items(), key=lambda item: -item[1])[:3]
        )
        return finding(
            self.rule,
            ledger,
            account,
            cost_ns,
            f"Idle time of the device, mostly {_label(account)}, costs",
            evidence=(f"without rank {late}, which arrives last: " if other_ranks and late is not None else "")
            + causes
            + (_describe_culprits(other_ranks) if account.what in _HOST_BUSY else ""),
            remedy=_REMEDIES[account.what],
            sure=0.9,
            change=_change_without_gaps(self.rule, ranks or (), cost_ns),
        )


def _change_without_gaps(rule: str, ranks: Sequence[Booked], cost_ns: int) -> RowChange:
    """The change in which the gaps vanish, on all ranks: a remedy changes the program of all. A rank with more than
    `cost_ns` of gaps a step keeps the excess, which makes it a straggler."""
    gaps_by_rank = [claimed_idle_rows(rank, Claimant.HOST) for rank in ranks]
    gap_ns = [int(rank.idle.ns[gaps].sum()) // rank.steps for rank, gaps in zip(ranks, gaps_by_rank)]
    return row_change(rule, ranks, idle=gaps_by_rank, idle_removed=[min(1.0, cost_ns / max(1, ns)) for ns in gap_ns])


def _gaps_from_ledger(ledger: Ledger) -> dict[Account, int]:
    """Account -> ns a step of the launch gaps that no other rule claims."""
    return {
        account: ns
        for account, ns in ledger.by_account().items()
        if account.kind == "launch_gap" and account.what not in _CLAIMED_BY_OTHER_RULES
    }


def _gaps_from_ranks(ranks: Sequence[Booked]) -> dict[Account, int]:
    """Account -> ns a step of the launch gaps, mean over `ranks`, without gaps that other rules claim by their
    circumstances (unfused optimizers, ...)."""
    ns_by_account: dict[Account, int] = {}
    for rank in ranks:
        gaps = claimed_idle_rows(rank, Claimant.HOST)
        for key, ns in enumerate(sum_by_key(rank.idle.key[gaps], rank.idle.ns[gaps])):
            if ns:
                account = rank.pairs[key][0]
                ns_by_account[account] = ns_by_account.get(account, 0) + ns
    return {account: mean_per_step(ranks, [ns]) for account, ns in ns_by_account.items()}


def _describe_culprits(ranks: Sequence[Booked]) -> str:
    """The code in which the busy host spends the gaps, as evidence."""
    gaps_by_rank = [_select_host_busy(rank) for rank in ranks]
    culprits = top_culprits(
        [time_by_culprit(rank, rank.idle.host[gaps], rank.idle.ns[gaps]) for rank, gaps in zip(ranks, gaps_by_rank)],
        sum(rank.steps for rank in ranks),
    )
    return "; mostly in " + ", ".join(f"{name} ({units.show_time(ns)})" for name, ns in culprits) if culprits else ""


def _select_host_busy(booked: Booked) -> I64:
    """Rows in `booked.idle` of the gaps in which the host had not yet launched the next work."""
    gaps = claimed_idle_rows(booked, Claimant.HOST)
    return gaps[booked.keys(lambda account, _: account.what in _HOST_BUSY)[booked.idle.key[gaps]]]


def _label(account: Account) -> str:
    return words.GAPS[account.what].label.removeprefix("Idle: ")
