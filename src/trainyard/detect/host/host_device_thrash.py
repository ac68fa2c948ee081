"""host_device_thrash: many or unpinned copies between host and device in the step.

What it does: takes exposed copies between host and device if there are dozens in a step, or if they use pageable
host memory.
Why it matters: a small copy costs its latency, a pageable one is staged by the host and cannot overlap.
Example: 60 masks of a kilobyte sent one by one in every step.
Remedy: send one packed tensor, pin the loader's memory and copy with `non_blocking=True`, make constants on the device.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.row_changes import row_change
from trainyard.detect.select_events import (
    dominant_account,
    owned_ns_per_step,
    select_by_name,
    select_work,
    starts_per_step,
)
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run

_MIN_COPIES = 32  # copies a step: a batch is a few tensors, and the optimizer's state is not copied
_PAGEABLE_NAME = re.compile(r"pageable", re.I)


class HostDeviceThrash:
    rule = "host_device_thrash"
    needs = ("ledger", "ranks")

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The exposed copies, if they are too many or use pageable memory."""
        ranks = ranks or ()
        rows_by_rank = [select_work(rank, "copy", "h2d", "d2h") for rank in ranks]
        pageable_by_rank = [select_by_name(rank, rows, _PAGEABLE_NAME) for rank, rows in zip(ranks, rows_by_rank)]
        is_many = starts_per_step(ranks, rows_by_rank) >= _MIN_COPIES
        selected_by_rank = rows_by_rank if is_many else pageable_by_rank
        cost_ns = owned_ns_per_step(ranks, selected_by_rank)
        if not matters(ledger, cost_ns):
            return ()
        copies = starts_per_step(ranks, selected_by_rank)
        moved_bytes = sum(int(rank.bytes[rows].clip(0).sum()) for rank, rows in zip(ranks, selected_by_rank))
        size = units.show_size(moved_bytes / max(1, sum(rank.steps for rank in ranks)))
        return finding(
            self.rule,
            ledger,
            dominant_account(ranks, selected_by_rank),
            cost_ns,
            _subject(copies, "" if is_many else "pageable "),
            evidence=(f"{size} per step in all; " if moved_bytes else "")
            + f"{starts_per_step(ranks, pageable_by_rank):,} of them from or to pageable memory",
            remedy="Pack small copies into one, or make them on the device."
            if is_many
            else "Pin the host's memory (pin_memory=True) and copy with non_blocking=True.",
            sure=0.8,
            change=row_change(self.rule, ranks, rows=selected_by_rank),
        )


def _subject(copies: int, kind: str) -> str:
    """`32 pageable copies per step between host and device cost`."""
    counted = units.counted(copies, f"{kind}copy", f"{kind}copies")
    return f"{counted} per step between host and device cost{'s' if copies == 1 else ''}"
