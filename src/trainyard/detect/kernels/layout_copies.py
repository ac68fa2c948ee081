"""layout_copies: tensors are converted between memory layouts around convolutions.

What it does: takes the kernels that only convert between NCHW and NHWC (cuDNN's and MIOpen's transposes).
Why it matters: matrix units need channels last; a model in the other layout is converted before and after each layer.
Example: 160 `nchwToNhwcKernel` in every step of a ResNet in mixed precision.
Remedy: `model.to(memory_format=torch.channels_last)`, and the inputs too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainyard.booked import Booked
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.select_events import account_of, commonest, count, named, owned, work
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run

_CONVERTS = re.compile(
    r"nchwtonhwc|nhwctonchw|batched_transpose|transpose_(nchw|cnhw|nhwc)|tensortransform.*nchw", re.I
)


class LayoutCopies:
    rule = "layout_copies"
    needs = ("ledger", "events")

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        ranks = events or ()
        rows = [named(rank, work(rank, "compute"), _CONVERTS) for rank in ranks]
        cost = owned(ranks, rows)
        if not matters(ledger, cost):
            return ()
        return finding(
            self.rule,
            ledger,
            account_of(ranks, rows),
            cost,
            f"{count(ranks, rows):,} memory-layout conversions a step cost",
            evidence=f"mostly {commonest(ranks, rows)}",
            remedy="Keep the model and its inputs in torch.channels_last.",
            sure=0.9,
        )
