"""allocator_churn: the step allocates and frees device memory through the driver.

What it does: takes the idle time in cudaMalloc, cudaFree and their like, and counts the calls.
Why it matters: the caching allocator serves a steady step without the driver; a driver call stops the device.
Example: batches of ever new lengths make the allocator give back its cache and ask again in every step.
Remedy: drop `empty_cache()`, pad to few lengths, or set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.booked import Booked
from trainyard.detect.blame import calls, told
from trainyard.detect.gaps import Answers, cost
from trainyard.detect.wording import finding, matters
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_LEAST = 0.01  # smaller than elsewhere: a healthy step has none at all


class AllocatorChurn:
    rule = "allocator_churn"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        account = Account("launch_gap", "alloc")
        ns = cost(ledger, events, Answers.ALLOC)
        if not matters(ledger, ns, _LEAST):
            return ()
        return finding(
            self.rule,
            ledger,
            account,
            ns,
            "Driver allocations cost",
            evidence=told(events, [calls(rank, account) for rank in events]) if events else "from the ledger alone",
            remedy="Drop empty_cache(), pad to few lengths, or use expandable segments.",
            sure=0.9 if events else 0.7,
        )
