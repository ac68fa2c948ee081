"""recompilation: torch.compile recompiles during a step.

What it does: takes the idle time in the compiler, if a step after the first of the trace compiles.
Why it matters: a step should compile once; shapes or guards that change from step to step trigger recompilation.
Example: a last batch of another size, or a Python counter in the model, recompiles for seconds.
Remedy: mark changing sizes as dynamic, keep changing values out of the graph; TORCH_LOGS=recompiles names the guard.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.booked import Booked
from trainyard.detect.idle_gaps import host_stop_finding
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run


class Recompilation:
    rule = "recompilation"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The device's idle time during compilations, if there are some after the first step.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        # A ledger does not show whether only the first step compiled.
        return host_stop_finding(
            self.rule,
            cause="compile",  # the account launch_gap/compile
            ledger=ledger,
            ranks=ranks,
            subject="Recompilation costs",
            remedy_for=_remedy_for,
            sure_without_ranks=0.5,
        )


def _remedy_for(names: Sequence[str]) -> str:
    """The remedy for the compiling calls: `TORCH_LOGS` only if torch.compile is among them."""
    if any("dynamo" in name or "inductor" in name for name in names):
        return "Mark changing sizes as dynamic; TORCH_LOGS=recompiles names the guard that failed."
    if any("autotun" in name or "triton" in name for name in names):
        return "Keep sizes fixed or cache the tuned configurations: kernels are compiled for new sizes."
    return "Keep sizes and settings fixed from step to step, so that compiled code is reused."
