"""exposed_comm: communication that compute does not overlap, with a remedy for each collective.

What it does: sums each collective's comm accounts over its groups. The findings are named `exposed_all_gather`,
`exposed_reduce_scatter` and so on.
Why it matters: the device waits for the network although there is compute that could overlap.
Example: `comm/all_reduce@world` owns 13 ms of a 222 ms step, and only 16 % of it is overlapped.
Remedy: prefetch gathers, bucket and overlap reductions, group experts' traffic, or send less.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units, words
from trainyard.booked import Booked
from trainyard.change import Change
from trainyard.detect.confidence import confidence, doubt_of_recurrence
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.largest_intervals import largest_work
from trainyard.detect.select_events import owned_ns_per_step, select_work
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Entry, Ledger
from trainyard.record import Run

_REMEDIES = {
    "all_gather": "Gather the next layer's parameters while this one computes (forward and backward prefetch), or "
    "shard over fewer ranks.",
    "reduce_scatter": "Overlap it with the backward pass: reduce each layer as soon as its gradients are ready.",
    "all_to_all": "Overlap it with the dense layers, keep its traffic inside a node, or send lower precision.",
    "broadcast": "Broadcast once before training, not in the step.",
    "barrier": "Remove barriers from the step.",
}
_GRADIENT_REMEDY = (
    "Overlap gradient buckets with the backward pass (smaller first bucket, static graph), or send bfloat16 gradients."
)
_FORWARD_REMEDY = (
    "It is in the forward and the backward pass, where the next layer needs its result: split it and overlap the "
    "parts (asynchronous tensor parallelism), or split tensors over fewer ranks."
)
_PIPELINE_REMEDY = "Send a micro-batch ahead of its use, or use an interleaved schedule."
_LATENCY_REMEDY = "Its messages are so small that they take their latency: combine them, or send them asynchronously."
_DEFAULT_REMEDY = "Overlap it with compute, or choose a layout that sends less."
_HOST_REMEDY = "The host waits in these calls: use their asynchronous forms and launch the device's work first."
_SMALL_BYTES = 64 * 1024  # at 20 GB/s this takes 3 µs, less than the latency of a collective
_UNALIGNED_DOUBT = 0.35  # that a relevant part is waiting for a late rank, if it cannot be separated


class ExposedComm:
    rule = "exposed_comm"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """One finding for each kind of collective with relevant exposed time.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        return [
            exposed for collective in words.COLLECTIVES for exposed in _find_exposed(ledger, ranks or (), collective)
        ]


def _find_exposed(ledger: Ledger, ranks: Sequence[Booked], collective: str) -> Sequence[Finding]:
    """The finding about the exposed time of one kind of collective (a key of words.COLLECTIVES), over all groups; empty
    if it is too short to matter. `ranks`: booked profiles; empty if only the ledger is available."""
    entries = [entry for entry in ledger.entries if (entry.account.kind, entry.account.what) == ("comm", collective)]
    ns_by_account: dict[Account, int] = {}
    for entry in entries:
        ns_by_account[entry.account] = ns_by_account.get(entry.account, 0) + entry.ns
    exposed_ns, hidden_ns = sum(ns_by_account.values()), sum(entry.hidden_ns for entry in entries)
    if not matters(ledger, exposed_ns):
        return ()
    largest = max(ns_by_account, key=lambda account: ns_by_account[account])
    # `on_host`: most of the time is booked to calls of the host that wait, not to device work.
    # A single rank of a job, and waits of the host, show when a call began, but not when the last rank arrived.
    rows_by_rank = [select_work(rank, "comm", collective) for rank in ranks]
    work_ns = owned_ns_per_step(ranks, rows_by_rank)
    on_host = bool(ranks) and work_ns < exposed_ns // 2
    is_separated = ledger.scope.aligned != "no" and len(ledger.scope.ranks) != 1 and not on_host
    overlapped = units.show_share(hidden_ns, exposed_ns + hidden_ns, 0) if hidden_ns else "none"
    on = f" on {largest.group}" if largest.group else ""
    largest_intervals = largest_work(ranks, rows_by_rank) if work_ns else None
    return finding(
        f"exposed_{collective}",
        ledger,
        largest,
        exposed_ns,
        f"Exposed {words.COLLECTIVES[collective].label}{on} costs",
        evidence=f"{overlapped} of this communication is overlapped with "
        f"compute; waiting for late ranks is {'not included' if is_separated else 'included'}",
        remedy=_HOST_REMEDY if on_host else _remedy(collective, entries, ranks, rows_by_rank),
        confidence=confidence(
            0 if is_separated else _UNALIGNED_DOUBT,
            doubt_of_recurrence(largest_intervals.steps_with, largest_intervals.steps, largest_intervals.is_single)
            if largest_intervals
            else 0,
        ),
        largest=largest_intervals,
        change=Change(text=f"comm/{collective}=overlap"),
    )


def _remedy(collective: str, entries: Sequence[Entry], ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> str:
    """The remedy for a kind of collective, by the size of its messages and the phases of its `entries` (those of the
    ledger). `rows_by_rank`: rows of its calls in the interval columns of each rank."""
    sizes = [
        rank.collectives[row].size
        for rank, rows in zip(ranks, rows_by_rank)
        for row in rows.tolist()
        if row in rank.collectives and rank.collectives[row].size > 0
    ]
    if sizes and sum(sizes) < _SMALL_BYTES * len(sizes):
        return _LATENCY_REMEDY
    phases = {entry.phase for entry in entries if entry.ns}
    if collective == "all_reduce" and "forward" in phases:
        # Gradients are reduced once; tensor parallelism reduces in both passes.
        return _FORWARD_REMEDY if "backward" in phases else _DEFAULT_REMEDY
    if collective == "all_reduce":
        return _GRADIENT_REMEDY
    if collective == "send_recv" and phases & {"forward", "backward"}:
        return _PIPELINE_REMEDY
    return _REMEDIES.get(collective, _DEFAULT_REMEDY)
