"""recompilation: torch.compile recompiles during a step.

What it does: takes the idle time in the compiler, if a step after the first of the trace compiles.
Why it matters: a step should compile once; shapes or guards that change from step to step trigger recompilation.
Example: a last batch of another size, or a Python counter in the model, recompiles for seconds.
Remedy: mark changing sizes as dynamic, keep changing values out of the graph; TORCH_LOGS=recompiles names the guard.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.booked import Booked
from trainyard.detect.host_blame import idle_causing_calls
from trainyard.detect.idle_gaps import host_stop_finding
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run


class Recompilation:
    rule = "recompilation"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The device's idle time during compilations after the first step."""
        if ranks and not any(_recompiles(rank, Account("launch_gap", "compile")) for rank in ranks):
            return ()
        remedy = "Mark changing sizes as dynamic; TORCH_LOGS=recompiles names the guard that failed."
        # A ledger does not show whether only the first step compiled.
        return host_stop_finding(
            self.rule, "compile", ledger, ranks, "Recompilation costs", remedy, sure_without_ranks=0.5
        )


def _recompiles(booked: Booked, account: Account) -> bool:
    """Whether a step after the first one in the trace makes calls that are booked as `account`, the compiler's."""
    first_step_stop = min((mark.stop for mark in booked.events.marks), default=booked.parts[0].stop)
    return bool((booked.events.host.start[idle_causing_calls(booked, account)] >= first_step_stop).any())
