"""Runs every detector plugin and sorts the findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainyard import plugins
from trainyard.booked import Booked
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.plugins import Detector
from trainyard.record import Run


def findings(
    ledger: Ledger,
    run: Run | None = None,
    ranks: Sequence[Booked] | None = None,
    rules: Iterable[Detector] | None = None,
) -> list[Finding]:
    """The findings of all rules (or only `rules`) for a mean ledger. Rules whose inputs are missing are skipped.

    `run`: the stored run, if the ledger is from one. `ranks`: the booked profile of each rank, if there is a trace.
    Sorted by recoverable time times confidence. Costs are upper bounds: `diagnose` prices them by replay.
    """
    available_inputs = {"ledger": True, "run": run is not None, "ranks": ranks is not None}
    output: list[Finding] = []
    for detector in plugins.load_all("detectors").values() if rules is None else rules:
        if ledger.wall_ns and all(available_inputs.get(need, False) for need in detector.needs):
            output.extend(detector.check(ledger, run, ranks))
    return sorted(output, key=lambda finding: -finding.weight)
