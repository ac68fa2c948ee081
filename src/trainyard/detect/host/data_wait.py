"""data_wait: the step waits for its next batch.

What it does: reads the data_wait account.
Why it matters: the device is idle while the data loader works.
Example: ResNet-50 without loader workers waits 33 ms of every 152 ms step.
Remedy: more loader workers, prefetching, pinned memory, or cheaper decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.booked import Booked
from trainyard.change import Change
from trainyard.detect.confidence import confidence, doubt_of_recurrence
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.largest_intervals import largest_idle
from trainyard.detect.select_events import select_idle
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.


class DataWait:
    rule = "data_wait"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The time of the data_wait account.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        account = Account("data_wait")
        cost_ns = ledger.by_account().get(account, 0)
        if not matters(ledger, cost_ns):
            return ()
        rows_by_rank = [select_idle(rank, lambda account: account.kind == "data_wait") for rank in ranks or ()]
        largest = largest_idle(ranks or (), rows_by_rank)
        return finding(
            self.rule,
            ledger,
            account,
            cost_ns,
            "Waiting for data costs",
            evidence="the host was fetching the next batch while the device idled",
            remedy=_remedy(ranks or ()),
            confidence=confidence(
                doubt_of_recurrence(largest.steps_with, largest.steps, largest.is_single) if largest else 0
            ),
            largest=largest,
            change=Change(text=f"{account}=0"),
        )


def _remedy(ranks: Sequence[Booked]) -> str:
    """The remedy, by whether the names in the files show PyTorch's loader, and whether it has worker processes."""
    names = {name for rank in ranks for name in rank.events.names if "DataLoader" in name}
    if any("_SingleProcessDataLoaderIter" in name for name in names):
        return "Load in workers (num_workers): the loader fetches each batch in the training process."
    if names:
        return "Add loader workers, prefetch more batches, pin memory, or make decoding cheaper."
    return "Fetch batches ahead of their use: workers, prefetching, cheaper decoding."
