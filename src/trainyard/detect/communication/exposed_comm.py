"""exposed_comm: communication that no compute covers, each collective with its own remedy.

What it does: takes each collective's comm accounts, over its groups. The findings are named `exposed_all_gather`,
`exposed_reduce_scatter` and so on.
Why it matters: the device waits for the network although it has work it could overlap.
Example: `comm/all_reduce@world` owns 13 ms of a 222 ms step, and only 16 % of it is hidden.
Remedy: prefetch gathers, bucket and overlap reductions, group experts' traffic, or send less.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units, words
from trainyard.booked import Booked
from trainyard.detect.finding_text import finding, matters
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_REMEDIES = {
    "all_gather": "Gather the next layer's parameters while this one computes (forward and backward prefetch), or "
    "shard over fewer ranks.",
    "reduce_scatter": "Let it run under the rest of the backward pass: reduce each layer as its gradients are ready.",
    "all_reduce": "Overlap gradient buckets with the backward pass (smaller first bucket, static graph), or send "
    "bfloat16 gradients.",
    "all_to_all": "Overlap it with the dense layers, keep experts' traffic inside a node, or send lower precision.",
    "broadcast": "Broadcast once before training, not in the step.",
    "send_recv": "Send a micro-batch ahead of its use, or use an interleaved schedule.",
    "barrier": "Remove barriers from the step.",
}
_OTHERWISE = "Overlap it with compute, or choose a layout that sends less."


class ExposedComm:
    rule = "exposed_comm"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        return [found for what in words.COLLECTIVES for found in _exposed(ledger, what)]


def _exposed(ledger: Ledger, what: str) -> Sequence[Finding]:
    entries = [entry for entry in ledger.entries if (entry.account.kind, entry.account.what) == ("comm", what)]
    groups: dict[Account, int] = {}
    for entry in entries:
        groups[entry.account] = groups.get(entry.account, 0) + entry.ns
    exposed, hidden = sum(groups.values()), sum(entry.hidden_ns for entry in entries)
    if not matters(ledger, exposed):
        return ()
    dearest = max(groups, key=lambda account: groups[account])
    aligned = ledger.scope.aligned != "no"
    on = f" on {dearest.group}" if dearest.group else ""
    return finding(
        f"exposed_{what}",
        ledger,
        dearest,
        exposed,
        f"Exposed {words.COLLECTIVES[what].label}{on} costs",
        evidence=f"{units.show_share(hidden, exposed + hidden)} of it is hidden under compute; waiting for late ranks "
        + ("is told apart" if aligned else "is in it"),
        remedy=_REMEDIES.get(what, _OTHERWISE),
        # Unaligned, some of it may be waiting for a late rank and no matter of the network at all.
        sure=0.9 if aligned else 0.6,
    )
