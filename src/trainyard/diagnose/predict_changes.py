"""Predictions of changed steps, with the causes of findings among the changes: `without:straggler`.

A finding is a cause of lost time that a rule states; its change removes the cause in a replay of the trace.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.change import WITHOUT, Change
from trainyard.detect.run_rules import findings
from trainyard.errors import BadInput, nearest
from trainyard.machine import Device
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.rank_results import all_booked
from trainyard.trace.whatif.what_if import Prediction, what_if


def predict_changes(measured: MeasuredTrace, texts: Sequence[str], device: Device | None = None) -> Prediction:
    """Predicts the steps of a trace with all changes in `texts` applied, in order.

    `texts`: suppositions such as `compute/norm=2x`, and `without:RULE`; `device`: the device of rooflines, None for the
    one that each rank's file names. Raises `BadInput` for a change that is invalid, matches nothing in the trace, or
    names a rule without a finding that can be replayed.
    """
    changes: list[Change] = []
    for text in texts:
        if text.strip().startswith(WITHOUT):
            changes.extend(_changes_of_rule(measured, text.strip()))
        else:
            changes.append(Change(text=text))
    prediction = what_if(measured, changes, device)
    return prediction._replace(supposed=tuple(texts))


def _changes_of_rule(measured: MeasuredTrace, text: str) -> list[Change]:
    """The changes that remove the causes of the findings of a rule, for `text` = `without:RULE`, or of the finding with
    exactly this change. Raises `BadInput` if there is none in this trace."""
    rule = text.removeprefix(WITHOUT)
    rules_and_changes = [
        (finding.rule, finding.change)
        for finding in findings(measured.mean, None, all_booked(measured))
        if finding.change is not None
    ]
    changes = [change for _, change in rules_and_changes if change.text == text]
    changes = changes or [change for name, change in rules_and_changes if name == rule]
    if not changes:
        known = {name for name, _ in rules_and_changes}
        hint = nearest(rule, known) if known else "No finding in this trace can be removed by a replay."
        raise BadInput(f"{text}: the trace has no finding of that rule that a replay can remove.", hint)
    return changes
