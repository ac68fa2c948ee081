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
from trainyard.detect.finding_text import finding, matters
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_REMEDIES = {
    "all_gather": "Gather the next layer's parameters while this one computes (forward and backward prefetch), or "
    "shard over fewer ranks.",
    "reduce_scatter": "Overlap it with the backward pass: reduce each layer as soon as its gradients are ready.",
    "all_reduce": "Overlap gradient buckets with the backward pass (smaller first bucket, static graph), or send "
    "bfloat16 gradients.",
    "all_to_all": "Overlap it with the dense layers, keep experts' traffic inside a node, or send lower precision.",
    "broadcast": "Broadcast once before training, not in the step.",
    "send_recv": "Send a micro-batch ahead of its use, or use an interleaved schedule.",
    "barrier": "Remove barriers from the step.",
}
_DEFAULT_REMEDY = "Overlap it with compute, or choose a layout that sends less."


class ExposedComm:
    rule = "exposed_comm"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        return [exposed for collective in words.COLLECTIVES for exposed in _find_exposed(ledger, collective)]


def _find_exposed(ledger: Ledger, collective: str) -> Sequence[Finding]:
    """The finding about the exposed time of one kind of collective (a key of words.COLLECTIVES), over all groups."""
    entries = [entry for entry in ledger.entries if (entry.account.kind, entry.account.what) == ("comm", collective)]
    ns_by_account: dict[Account, int] = {}
    for entry in entries:
        ns_by_account[entry.account] = ns_by_account.get(entry.account, 0) + entry.ns
    exposed_ns, hidden_ns = sum(ns_by_account.values()), sum(entry.hidden_ns for entry in entries)
    if not matters(ledger, exposed_ns):
        return ()
    largest = max(ns_by_account, key=lambda account: ns_by_account[account])
    aligned = ledger.scope.aligned != "no"
    overlapped = units.show_share(hidden_ns, exposed_ns + hidden_ns, 0) if hidden_ns else "none"
    on = f" on {largest.group}" if largest.group else ""
    return finding(
        f"exposed_{collective}",
        ledger,
        largest,
        exposed_ns,
        f"Exposed {words.COLLECTIVES[collective].label}{on} costs",
        evidence=f"{overlapped} of this communication is overlapped with "
        f"compute; waiting for late ranks is {'not included' if aligned else 'included'}",
        remedy=_REMEDIES.get(collective, _DEFAULT_REMEDY),
        # If clocks are not aligned, part of it may be waiting for a late rank, which is not a network problem.
        sure=0.9 if aligned else 0.6,
        change=Change(text=f"comm/{collective}=overlap"),
    )
