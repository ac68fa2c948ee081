"""launch_bound: the device is idle because the host has not given it work.

What it does: sums the launch gaps and names the dearest cause.
Why it matters: faster kernels win nothing while the host is the bottleneck.
Example: 424 ms of a 661 ms window pass while the host is inside framework and driver launch code.
Remedy: fewer, larger kernels (compile, CUDA graphs, fused optimizer), and no host synchronisation in the step.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units, words
from trainyard.detect.wording import whole
from trainyard.events import Events
from trainyard.finding import Finding, Remedy, severity
from trainyard.ledger import Ledger
from trainyard.record import Run

_LEAST = 0.03
_REMEDIES = {
    "sync": "Remove synchronising calls (.item(), print of a tensor, blocking copies) from the step.",
    "alloc": "Keep memory cached: avoid empty_cache and shape changes that make the allocator go to the driver.",
    "python": "Move Python out of the step: compile it, or do its work before it is waited for.",
    "compile": "Warm up before measuring, and look for recompilation.",
    "gc": "Freeze or disable Python's garbage collection during the step.",
    "launch": "Launch fewer, larger kernels: torch.compile, CUDA graphs, fused or foreach optimizers.",
    "queue": "Work was launched but started late: look at launch latency, stream priorities and dependencies.",
    "stream_wait": "A stream waits for another one: look at the events between them.",
}


class LaunchBound:
    rule = "launch_bound"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Events] | None) -> Sequence[Finding]:
        gaps = {account: ns for account, ns in ledger.by_account().items() if account.kind == "launch_gap"}
        cost = sum(gaps.values())
        if not ledger.wall_ns or cost < _LEAST * ledger.wall_ns:
            return ()
        dearest = max(gaps, key=lambda account: gaps[account])
        causes = ", ".join(
            f"{words.GAPS[account.what].label.removeprefix('Gap: ')} {units.show_time(ns)}"
            for account, ns in sorted(gaps.items(), key=lambda item: -item[1])[:3]
        )
        return (
            Finding(
                rule=self.rule,
                severity=severity(cost, ledger.wall_ns),
                account=dearest,
                cost_ns=cost,
                says=f"Launch gaps, most of them {words.GAPS[dearest.what].label.removeprefix('Gap: ')}, cost "
                f"{units.show_time(cost)} of {whole(ledger)}",
                evidence=causes,
                remedy=Remedy(says=_REMEDIES[dearest.what], wins_ns=cost),
                sure=0.9,
            ),
        )
