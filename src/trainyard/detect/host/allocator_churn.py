"""allocator_churn: the step allocates and frees device memory through the driver.

What it does: takes the idle time in cudaMalloc, cudaFree and similar calls, and counts the calls.
Why it matters: in steady state the caching allocator does not call the driver; a driver call stalls the device.
Example: sequence lengths that change in every batch make the allocator free its cache and allocate again each step.
Remedy: remove `empty_cache()`, pad to few lengths, or set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.booked import Booked
from trainyard.detect.idle_gaps import host_stop_finding
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run


class AllocatorChurn:
    rule = "allocator_churn"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        remedy = "Remove empty_cache(), pad to few lengths, or use expandable segments."
        return host_stop_finding(self.rule, "alloc", ledger, ranks, "Driver allocations cost", remedy)
