"""allocator_churn: the step allocates and frees device memory through the driver.

What it does: takes the idle time in cudaMalloc, cudaFree and similar calls, and counts the calls.
Why it matters: in steady state the caching allocator does not call the driver; a driver call stalls the device.
Example: sequence lengths that change in every batch make the allocator free its cache and allocate again each step.
Remedy: pad to few lengths, set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, remove `empty_cache()` if the file
shows it.
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
        """The idle time in calls that allocate or free memory through the driver.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        return host_stop_finding(
            self.rule,
            cause="alloc",  # the account launch_gap/alloc
            ledger=ledger,
            ranks=ranks,
            subject="Driver allocations cost",
            remedy_for=_remedy_for,
        )


def _remedy_for(names: Sequence[str]) -> str:
    """The remedy for the allocating calls: PyTorch's settings only if its caching allocator may be the caller."""
    if names and all("Host" in name for name in names):
        return "Allocate page-locked host memory once and reuse it."
    if any("empty_cache" in name for name in names):
        return "Remove empty_cache() from the step."
    return "Keep memory between steps: pad to few lengths, use expandable segments, or allocate buffers once."
