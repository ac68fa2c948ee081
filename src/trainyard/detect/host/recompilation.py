"""recompilation: a step compiles again.

What it does: takes the idle time in the compiler, in steps after the first of the trace too.
Why it matters: a compiled step is compiled once; shapes or guards that change from step to step do it again and again.
Example: a last batch of another size, or a Python counter in the model, recompiles for seconds.
Remedy: mark changing sizes as dynamic, drop what changes from the graph; TORCH_LOGS=recompiles says which guard failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.booked import Booked
from trainyard.detect.host_blame import calls
from trainyard.detect.idle_gaps import stopped
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run


class Recompilation:
    rule = "recompilation"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        if events and not any(_again(rank, Account("launch_gap", "compile")) for rank in events):
            return ()
        remedy = "Mark changing sizes as dynamic; TORCH_LOGS=recompiles says which guard failed."
        # A ledger alone does not say whether it was the first step that compiled.
        return stopped(self.rule, "compile", ledger, events, "Compiling again costs", remedy, unseen=0.5)


def _again(booked: Booked, account: Account) -> bool:
    """Whether a step after the first one of the trace compiles."""
    first = min((mark.stop for mark in booked.events.marks), default=booked.parts[0].stop)
    return bool((booked.events.host.start[calls(booked, account)] >= first).any())
