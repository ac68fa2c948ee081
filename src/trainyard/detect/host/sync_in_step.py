"""sync_in_step: the host synchronises with the device in the middle of a step.

What it does: takes the idle time that synchronising calls cause: while they return, and while the host refills the
launch queue, which would have stayed full without them. On a CPU, where there is no device to wait for, it takes long
runs of values read one by one.
Why it matters: the host can run ahead of the device only while nothing stops it.
Example: `loss.item()` after every micro-batch lets the device run dry eight times a step.
Remedy: read values at most once a step and asynchronously; keep decisions on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.finding_text import count_per_step, finding, matters
from trainyard.detect.host_blame import calls, describe_calls, time_by_culprit, top_culprits
from trainyard.detect.idle_gaps import Claimant, cost, rows
from trainyard.detect.kernel_storms import storms, within
from trainyard.detect.select_events import account_of, owned
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_LEAST = 0.01  # of the step; smaller than for other rules: removing a sync is a one-line change
_SYNC = "launch_gap/sync"


class SyncInStep:
    rule = "sync_in_step"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        account = Account.parse(_SYNC)
        gaps = cost(ledger, events, Claimant.SYNC)
        if not events:
            if not matters(ledger, gaps, _LEAST):
                return ()
            evidence = "a ledger does not show which call"
            return finding(
                self.rule, ledger, account, gaps, "Host syncs cost", evidence=evidence, remedy=_REMEDY, sure=0.7
            )
        read = [_read_one_by_one(rank) for rank in events]
        busy = owned(events, read)
        if not matters(ledger, gaps + busy, _LEAST):
            return ()
        sync_calls = [calls(rank, Account.parse(_SYNC)) for rank in events]
        count = count_per_step(events, (len(own) for own in sync_calls))
        if busy > gaps:
            account = account_of(events, read)
        return finding(
            self.rule,
            ledger,
            account,
            gaps + busy,
            f"{count:,} host sync{'s' if count != 1 else ''} a step cost{'s' if count == 1 else ''}",
            evidence=_evidence(events, sync_calls),
            remedy=_REMEDY,
            sure=0.9,
        )


_REMEDY = "Read values (.item(), print, `if` on a tensor, blocking copies) at most once a step, or asynchronously."


def _read_one_by_one(booked: Booked) -> I64:
    """Intervals of a CPU in full steps within long runs of values read one by one."""
    runs = [storm for storm in storms(booked) if storm.syncs]
    work = booked.keys(lambda account, _: account.kind == "compute")
    return np.flatnonzero(work[booked.key] & within(runs, booked.start) & booked.full(booked.start))


def _evidence(events: Sequence[Booked], sync_calls: Sequence[I64]) -> str:
    gaps = [rows(rank, Claimant.SYNC) for rank in events]
    idle = top_culprits(
        [time_by_culprit(rank, rank.idle.host[own], rank.idle.ns[own]) for rank, own in zip(events, gaps)],
        sum(rank.steps for rank in events),
        most=3,
    )
    top = ", ".join(f"{name} ({units.show_time(ns)})" for name, ns in idle if ns)
    return describe_calls(events, sync_calls) + (f"; idle meanwhile: {top}" if top else "")
