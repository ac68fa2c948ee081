"""Predictions of changed steps, with the causes of findings among the changes: `without:straggler`."""

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
    """Predicts the steps of a trace with all changes in `texts` applied. `device`: as in `what_if`. Raises `BadInput`
    for a change that is invalid, matches nothing in the trace, or names a rule without a finding that can be
    replayed."""
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
    changes_of_rule = [
        (finding.rule, finding.change)
        for finding in findings(measured.mean, None, all_booked(measured))
        if finding.change is not None
    ]
    changes = [change for _, change in changes_of_rule if change.text == text]
    changes = changes or [change for name, change in changes_of_rule if name == rule]
    if not changes:
        known = {name for name, _ in changes_of_rule}
        hint = nearest(rule, known) if known else "No finding in this trace can be removed by a replay."
        raise BadInput(f"{text}: the trace has no finding of that rule that a replay can remove.", hint)
    return changes
