"""pipeline_bubble: pipeline stages that idle between micro-batches.

What it does: sums the bubble accounts and names the largest of warm-up, drain and steady state.
Why it matters: with p stages and m micro-batches a plain schedule idles for (p - 1) of every m + p - 1 slots.
Example: four stages and four micro-batches leave each stage idle for three slots of seven.
Remedy: more micro-batches, an interleaved or zero-bubble schedule, or stages of equal length.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units, words
from trainyard.booked import Booked
from trainyard.detect.confidence import confidence
from trainyard.detect.finding_text import finding, matters
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run

_REMEDIES = {
    "warmup": "Use more micro-batches a step, or an interleaved schedule.",
    "drain": "Use more micro-batches a step, or a zero-bubble schedule that puts weight gradients into the drain.",
    "steady": "Give the stages equal work: move layers from the stage that the others wait for.",
}


class PipelineBubble:
    rule = "pipeline_bubble"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The sum of all bubbles, reported on the largest of them.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        bubbles = {account: ns for account, ns in ledger.by_account().items() if account.kind == "bubble"}
        cost_ns = sum(bubbles.values())
        if not matters(ledger, cost_ns):
            return ()
        largest = max(bubbles, key=lambda account: bubbles[account])
        shares = ", ".join(
            f"{words.BUBBLES[account.what].label.removeprefix('Bubble, ')} {units.show_time(ns)}"
            for account, ns in bubbles.items()
        )
        label = words.BUBBLES[largest.what].label.removeprefix("Bubble, ")
        mostly = f", mostly {label}," if 2 * bubbles[largest] > cost_ns else ""
        return finding(
            self.rule,
            ledger,
            largest,
            cost_ns,
            f"Pipeline bubbles{mostly} cost",
            evidence=shares,
            remedy=_REMEDIES[largest.what],
            confidence=confidence(),
        )
