"""allocator_churn: the step allocates and frees device memory through the driver.

What it does: takes the idle time in cudaMalloc, cudaFree and their like, and counts the calls.
Why it matters: the caching allocator serves a steady step without the driver; a driver call stops the device.
Example: batches of ever new lengths make the allocator give back its cache and ask again in every step.
Remedy: drop `empty_cache()`, pad to few lengths, or set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.booked import Booked
from trainyard.detect.idle_gaps import stopped
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run


class AllocatorChurn:
    rule = "allocator_churn"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        remedy = "Drop empty_cache(), pad to few lengths, or use expandable segments."
        return stopped(self.rule, "alloc", ledger, events, "Driver allocations cost", remedy)
