"""Runs every detector plugin and sorts the findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainyard import plugins, words
from trainyard.booked import Booked
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.plugins import Detector
from trainyard.record import Run

_SYMPTOMS = ("launch_bound", "imbalance", "coverage")
"""Rules that say where time goes, and name no call, rank or link that is at fault."""


def findings(
    ledger: Ledger,
    run: Run | None = None,
    events: Sequence[Booked] | None = None,
    rules: Iterable[Detector] | None = None,
) -> list[Finding]:
    """What all rules say of a mean ledger; a rule that lacks what it needs is silent. `rules`: these alone.

    By severity; among equals a culprit stands before a symptom, and the dearer one before the cheaper.
    """
    given = {"ledger": True, "run": run is not None, "events": events is not None}
    found: list[Finding] = []
    for detector in plugins.load_all("detectors").values() if rules is None else rules:
        if ledger.wall_ns and all(given.get(need, False) for need in detector.needs):
            found.extend(detector.check(ledger, run, events))
    grave = list(words.SEVERITIES)
    return sorted(found, key=lambda one: (grave.index(one.severity), one.rule in _SYMPTOMS, -one.cost_ns))
