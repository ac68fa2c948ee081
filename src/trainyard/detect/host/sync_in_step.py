"""sync_in_step: the host synchronises with the device in the middle of a step.

What it does: takes the idle time that synchronising calls cause: while they return, and while the host refills the
launch queue, which would have stayed full without them. On a CPU, without a device to wait for, it takes long
runs of values read one by one.
Why it matters: the host can run ahead of the device only while nothing stops it.
Example: `loss.item()` after every micro-batch lets the device run dry eight times a step.
Remedy: read values at most once a step and asynchronously; keep decisions on the device.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.change import Change
from trainyard.detect.code_shares import code_shares, cpu_time
from trainyard.detect.confidence import confidence, doubt_of_recurrence
from trainyard.detect.finding_text import count_per_step, finding, matters
from trainyard.detect.host_blame import describe_calls, idle_causing_calls, time_by_culprit, top_culprits
from trainyard.detect.idle_gaps import Claimant, claimed_idle_rows, claimed_ns
from trainyard.detect.kernel_storms import find_storms, is_in_storms
from trainyard.detect.largest_intervals import largest_idle
from trainyard.detect.regularity import regular_fraction
from trainyard.detect.row_changes import row_change
from trainyard.detect.select_events import dominant_account, owned_ns_per_step
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

_MIN_STEP_FRACTION = 0.01  # of the step; smaller than for other rules: removing a sync is a one-line change
_REFILL_DOUBT = 0.7  # that refilling which moves from step to step is not due to the syncs
_REGULAR_GUESS = 0.7  # regular fraction, if there are too few steps to compare
_SYNC_ACCOUNT = "launch_gap/sync"


class SyncInStep:
    rule = "sync_in_step"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """Idle time from synchronising calls, and the time of copies that read single values.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        account = Account.parse(_SYNC_ACCOUNT)
        gaps_ns = claimed_ns(ledger, ranks, Claimant.SYNC)
        if not ranks:
            if not matters(ledger, gaps_ns, _MIN_STEP_FRACTION):
                return ()
            evidence = "a ledger does not show which call"
            return finding(
                self.rule,
                ledger,
                account,
                gaps_ns,
                "Host syncs cost",
                evidence=evidence,
                remedy=_FEWER_READS,
                confidence=0.7,
            )
        scalar_read_rows_by_rank = [_select_single_reads(rank) for rank in ranks]
        busy_ns = owned_ns_per_step(ranks, scalar_read_rows_by_rank)
        if not matters(ledger, gaps_ns + busy_ns, _MIN_STEP_FRACTION):
            return ()
        sync_rows_by_rank = [idle_causing_calls(rank, Account.parse(_SYNC_ACCOUNT)) for rank in ranks]
        # Without a device, reading a value waits for nothing.
        on_device = any(rank.on_device for rank in ranks)
        call = ("host sync", "host syncs") if on_device else ("read of a single value", "reads of single values")
        sync_count = count_per_step(ranks, (len(rows) for rows in sync_rows_by_rank))
        largest = largest_idle(ranks, [claimed_idle_rows(rank, Claimant.SYNC) for rank in ranks])
        code = None  # that of the idle time
        if busy_ns > gaps_ns:
            account = dominant_account(ranks, scalar_read_rows_by_rank)
            code = code_shares(ranks, [cpu_time(rank, rows) for rank, rows in zip(ranks, scalar_read_rows_by_rank)])
        return finding(
            self.rule,
            ledger,
            account,
            gaps_ns + busy_ns,
            f"{units.counted(sync_count, *call)} per step cost{'s' if sync_count == 1 else ''}",
            evidence=_describe_syncs(ranks, sync_rows_by_rank),
            remedy=_remedy(ranks, sync_rows_by_rank),
            confidence=confidence(
                doubt_of_recurrence(largest.steps_with, largest.steps, largest.is_single) if largest else 0,
                _doubt_of_refill(ranks),
            ),
            largest=largest,
            code=code,
            change=_change_without_waits(self.rule, ranks, scalar_read_rows_by_rank),
        )


_FEWER_READS = "Read values (.item(), print, `if` on a tensor, blocking copies) at most once a step, or asynchronously."


_READ_NAMES = re.compile(r"aten::(item|_local_scalar_dense|is_nonzero|nonzero)|\b(item|tolist) of Tensor")
_COPY_NAMES = re.compile(r"^(cuda|hip|cu)Memcpy")


def _remedy(ranks: Sequence[Booked], sync_rows_by_rank: Sequence[I64]) -> str:
    """The remedy by the calls that synchronise (host rows of each rank): reads of values, blocking copies, waits."""
    counts = {"read": 0, "copy": 0, "wait": 0}
    for rank, rows in zip(ranks, sync_rows_by_rank):
        names = rank.events.host.name[rows]
        reads, copies = rank.names(_READ_NAMES.search)[names], rank.names(_COPY_NAMES.match)[names]
        counts["read"] += int(reads.sum())
        counts["copy"] += int((copies & ~reads).sum())
        counts["wait"] += int((~copies & ~reads).sum())
    kind = max(counts, key=lambda kind: counts[kind])
    if kind == "read" or (kind == "wait" and any(rank.events.shows_torch for rank in ranks)):
        return _FEWER_READS
    if kind == "copy":
        return "Copy asynchronously from and to page-locked memory, and wait for the copy where its data is used."
    return "Wait for an event or a stream where the result is used, not for the whole device."


def _change_without_waits(rule: str, ranks: Sequence[Booked], scalar_read_rows_by_rank: Sequence[I64]) -> Change:
    """The hypothetical change for `trace what-if`. With a device: no host call waits for it. On a CPU: values read one
    at a time (`.item()` in a loop), and the idle time attributed to synchronisation, take no time.

    `scalar_read_rows_by_rank`: for each rank, the rows of its interval columns that are such reads.
    """
    if any(rank.on_device for rank in ranks):
        return Change(text="no-syncs")  # a keyword of `trace what-if --change`
    idle = [claimed_idle_rows(rank, Claimant.SYNC) for rank in ranks]
    return row_change(rule, ranks, rows=scalar_read_rows_by_rank, idle=idle)


def _select_single_reads(booked: Booked) -> I64:
    """Rows of a CPU's intervals in full steps within long runs of values read one by one."""
    storms = [storm for storm in find_storms(booked) if storm.syncs]
    is_compute = booked.keys(lambda account, _: account.kind == "compute")
    return np.flatnonzero(is_compute[booked.key] & is_in_storms(storms, booked.start) & booked.full(booked.start))


def _doubt_of_refill(ranks: Sequence[Booked]) -> float:
    """The doubt that the claimed time after syncs, in which the host refills the launch queue, is due to them: if it is
    at other places in each step, disturbances of the host cause it, which a lead would hide only in part."""
    irregular_ns = total_ns = 0.0
    for rank in ranks:
        rows = claimed_idle_rows(rank, Claimant.SYNC)
        is_sync = rank.keys(lambda account, _: str(account) == _SYNC_ACCOUNT)[rank.idle.key[rows]]
        refill = rows[~is_sync]
        regular = regular_fraction(rank, refill)
        irregular_ns += float(rank.idle.ns[refill].sum()) * (1 - (_REGULAR_GUESS if regular is None else regular))
        total_ns += float(rank.idle.ns[rows].sum())
    return _REFILL_DOUBT * irregular_ns / total_ns if total_ns else 0.0


def _describe_syncs(ranks: Sequence[Booked], sync_rows_by_rank: Sequence[I64]) -> str:
    """The synchronising calls (host rows of each rank) and the code in which the device idles, as evidence."""
    idle_rows_by_rank = [claimed_idle_rows(rank, Claimant.SYNC) for rank in ranks]
    culprits = top_culprits(
        [
            time_by_culprit(rank, rank.idle.host[rows], rank.idle.ns[rows])
            for rank, rows in zip(ranks, idle_rows_by_rank)
        ],
        sum(rank.steps for rank in ranks),
        limit=3,
    )
    top = ", ".join(f"{name} ({units.show_time(ns)})" for name, ns in culprits if ns)
    return describe_calls(ranks, sync_rows_by_rank) + (f"; idle meanwhile: {top}" if top else "")
