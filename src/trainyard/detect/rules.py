"""Runs every detector behind the door and sorts what they find, dearest first."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import plugins
from trainyard.events import Events
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run


def findings(ledger: Ledger, run: Run | None = None, events: Sequence[Events] | None = None) -> list[Finding]:
    """What all rules say of a mean ledger. A rule that lacks what it needs is silent."""
    given = {"ledger": True, "run": run is not None, "events": events is not None}
    found: list[Finding] = []
    for detector in plugins.load_all("detectors").values():
        if all(given.get(need, False) for need in detector.needs):
            found.extend(detector.check(ledger, run, events))
    return sorted(found, key=lambda finding: -finding.cost_ns)
