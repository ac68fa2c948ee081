"""layout_copies: tensors are converted between memory layouts around convolutions.

What it does: takes the kernels that only convert between NCHW and NHWC (cuDNN's and MIOpen's transposes).
Why it matters: matrix units need channels last; a model in the other layout is converted before and after each layer.
Example: 160 `nchwToNhwcKernel` in every step of a ResNet in mixed precision.
Remedy: `model.to(memory_format=torch.channels_last)`, and the inputs too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.confidence import confidence
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.row_changes import row_change
from trainyard.detect.select_events import (
    describe_names,
    dominant_account,
    owned_ns_per_step,
    select_by_name,
    select_work,
    starts_per_step,
)
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run

_LAYOUT_KERNEL = re.compile(
    r"nchwtonhwc|nhwctonchw|batched_transpose|transpose_(nchw|cnhw|nhwc)|tensortransform.*nchw", re.I
)


class LayoutCopies:
    rule = "layout_copies"
    needs = ("ledger", "ranks")

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The time of kernels that only change a tensor's memory layout.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        ranks = ranks or ()
        rows_by_rank = [select_by_name(rank, select_work(rank, "compute"), _LAYOUT_KERNEL) for rank in ranks]
        cost_ns = owned_ns_per_step(ranks, rows_by_rank)
        if not matters(ledger, cost_ns):
            return ()
        kernels = starts_per_step(ranks, rows_by_rank)
        return finding(
            self.rule,
            ledger,
            dominant_account(ranks, rows_by_rank),
            cost_ns,
            f"{units.counted(kernels, 'memory-layout conversion')} per step cost{'s' if kernels == 1 else ''}",
            evidence=describe_names(ranks, rows_by_rank),
            remedy="Keep the model and its inputs in torch.channels_last."
            if any(rank.events.shows_torch for rank in ranks)
            else "Keep tensors in the layout of the convolutions (NHWC).",
            confidence=confidence(),
            change=row_change(self.rule, ranks, rows=rows_by_rank),
        )
