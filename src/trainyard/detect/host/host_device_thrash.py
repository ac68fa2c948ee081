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
from trainyard.detect.select_events import account_of, count, named, owned, work
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run

_MANY = 32  # copies a step: a batch is a few tensors, and the optimizer's state is not copied
_PAGEABLE = re.compile(r"pageable", re.I)


class HostDeviceThrash:
    rule = "host_device_thrash"
    needs = ("ledger", "events")

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        ranks = events or ()
        rows = [work(rank, "copy", "h2d", "d2h") for rank in ranks]
        pageable = [named(rank, own, _PAGEABLE) for rank, own in zip(ranks, rows)]
        many = count(ranks, rows) >= _MANY
        selected = rows if many else pageable
        cost = owned(ranks, selected)
        if not matters(ledger, cost):
            return ()
        moved = sum(int(rank.bytes[own].clip(0).sum()) for rank, own in zip(ranks, selected))
        size = units.show_size(moved / max(1, sum(rank.steps for rank in ranks)))
        return finding(
            self.rule,
            ledger,
            account_of(ranks, selected),
            cost,
            f"{count(ranks, selected):,} {'' if many else 'pageable '}copies a step between host and device cost",
            evidence=(f"{size} a step in all; " if moved else "")
            + f"{count(ranks, pageable):,} of them use pageable memory",
            remedy="Pack small copies into one, or make them on the device."
            if many
            else "Pin the host's memory (pin_memory=True) and copy with non_blocking=True.",
            sure=0.8,
        )
