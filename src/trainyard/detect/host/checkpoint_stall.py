"""checkpoint_stall: the step stalls while a checkpoint is saved or loaded.

What it does: reads the checkpoint accounts.
Why it matters: training stops meanwhile, on all ranks.
Example: a save in every tenth step stalls it for two seconds.
Remedy: copy the state to host memory and write it in the background (`async_save`), save sharded, or less often.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units, words
from trainyard.booked import Booked
from trainyard.change import Change
from trainyard.detect.confidence import confidence
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.largest_intervals import largest_idle
from trainyard.detect.select_events import select_idle
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run


class CheckpointStall:
    rule = "checkpoint_stall"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The time of all checkpoint accounts.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        stalls = {account: ns for account, ns in ledger.by_account().items() if account.kind == "checkpoint"}
        cost_ns = sum(stalls.values())
        if not matters(ledger, cost_ns):
            return ()
        shares = ", ".join(
            f"{words.CHECKPOINTS[account.what].label.lower()} {units.show_time(ns)}" for account, ns in stalls.items()
        )
        account = max(stalls, key=lambda account: stalls[account])
        rows_by_rank = [select_idle(rank, lambda account: account.kind == "checkpoint") for rank in ranks or ()]
        return finding(
            self.rule,
            ledger,
            account,
            cost_ns,
            "Checkpoints cost",
            evidence=f"{shares} per step, averaged over the steps in the trace",
            remedy="Load before the steps that are measured."
            if account.what == "load"
            else "Save in the background (async_save), sharded by rank, or less often.",
            confidence=confidence(),
            largest=largest_idle(ranks or (), rows_by_rank),
            change=Change(text="checkpoint=0"),
        )
