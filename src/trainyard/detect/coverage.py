"""coverage: the part of the step that could not be attributed.

What it does: adds unexplained time and the time of unrecognised kernels.
Why it matters: above 3 % of the step, the other figures may be incomplete; this time is never spread over them.
Example: idle time before kernels whose launches are not in the file.
Remedy: for unexplained time, profile with CPU activity on and from before the step; for unrecognised kernels, look at
their names, which the evidence lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.finding_text import finding, matters, shorten
from trainyard.detect.select_events import select_work
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

MIN_UNEXPLAINED_FRACTION = 0.03
_NAMED = 3


class Coverage:
    rule = "coverage"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """Unexplained and unrecognised time, if it is a relevant part of the step.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        cost_ns = ledger.unrecognised_ns
        if not matters(ledger, cost_ns, MIN_UNEXPLAINED_FRACTION):
            return ()
        unexplained_ns = ledger.by_account().get(Account("unexplained"), 0)
        unrecognised_ns = cost_ns - unexplained_ns
        rows_by_rank = [select_work(rank, "compute", "other") for rank in ranks or ()]
        return finding(
            self.rule,
            ledger,
            Account("unexplained") if unexplained_ns >= unrecognised_ns else Account("compute", "other"),
            cost_ns,
            "Unattributed time takes",
            evidence=f"unexplained {units.show_time(unexplained_ns)}, unrecognised kernels "
            f"{units.show_time(unrecognised_ns)}"
            + (f": {names}" if unrecognised_ns and (names := _describe_kernels(ranks or (), rows_by_rank)) else ""),
            remedy=_remedy(unexplained_ns, unrecognised_ns, ranks or ()),
            wins=0,
            confidence=1.0,
        )


def _describe_kernels(ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> str:
    """The names of the unrecognised kernels with most time, and the number of further names. `rows_by_rank`: the rows
    of these kernels in the columns of each rank."""
    ns_by_name: Counter[str] = Counter()
    for rank, rows in zip(ranks, rows_by_rank):
        # By index into `events.names`, shifted by one, so that element 0 is the time without a name (-1).
        ns = np.bincount(rank.name[rows] + 1, weights=rank.owned[rows], minlength=1)
        ns_by_name.update({rank.events.names[index - 1]: int(ns[index]) for index in np.flatnonzero(ns[1:]) + 1})
    named = ", ".join(shorten(name) for name, _ in ns_by_name.most_common(_NAMED))
    more = len(ns_by_name) - _NAMED
    return f"{named} and {more:,} more" if more > 0 else named


def _remedy(unexplained_ns: int, unrecognised_ns: int, ranks: Sequence[Booked]) -> str:
    """The next step, by the missing part: launches in the file, launches before its start, or names of kernels."""
    if unrecognised_ns > unexplained_ns:
        return "The names of these kernels do not show their arithmetic: look them up in their source."
    # Per rank, whether each kernel lacks a launch: no launching call and no launching op (-1).
    unlaunched_by_rank = [(rank.events.work.call < 0) & (rank.events.work.op < 0) for rank in ranks if rank.on_device]
    unlaunched_count = sum(int(is_unlaunched.sum()) for is_unlaunched in unlaunched_by_rank)
    if unlaunched_by_rank and not unlaunched_count:
        return "Every kernel has its launch in the file: look at the start and the end of the window."
    if unlaunched_count and unlaunched_count == sum(map(len, unlaunched_by_rank)):
        return "Record CPU activity too: the file has no launches."
    # Whether on each rank the kernels without a launch are the first ones.
    if unlaunched_count and all(mask[: int(mask.sum())].all() for mask in unlaunched_by_rank):
        return "Start the profiler before the step: the first kernels were launched before it started."
    return "Record the launches of all kernels: CPU activity on every thread, from before the step."
