"""Confidence of a finding, from the doubts that its evidence leaves.

A doubt is the probability that the finding is wrong for one reason: the cost occurred once, moves from step to step,
is measured on few steps, or has a second explanation that the file cannot exclude. Independent doubts multiply.
`validation/calibration.py` compares the result with planted causes, among them kinds that no rule knows.
"""

from __future__ import annotations

import math

_UNKNOWN_DOUBT = 0.03
"""Probability that a finding is wrong for a reason that no rule considers."""
CANNOT_TELL = 0.5
"""Below this confidence a finding states where time goes, but not why."""
_ONE_OFF_DOUBT = 0.5
"""That a cost of a single occurrence is not a property of the step: it may be a disturbance."""
_RARE_DOUBT = 0.3
"""That a cost which recurs in few steps is not a property of the step."""
_SINGLE_STEP_DOUBT = 0.1
"""The same for a file with a single step, which cannot show whether the cost recurs."""


def confidence(*doubts: float) -> float:
    """The probability that none of these `doubts` (each from 0 to 1), nor an unknown one, applies; two decimals."""
    return round((1 - _UNKNOWN_DOUBT) * math.prod(1 - min(1.0, max(0.0, doubt)) for doubt in doubts), 2)


def doubt_of_recurrence(steps_with: int, steps: int, is_single: bool) -> float:
    """The doubt about a cost that occurs in `steps_with` of `steps` steps of all ranks; `is_single`: almost all of it
    is one interval on each rank."""
    if is_single and steps > 1:
        return _ONE_OFF_DOUBT
    if steps <= 1:
        return _SINGLE_STEP_DOUBT
    return _RARE_DOUBT * max(0.0, 1 - 2 * steps_with / steps)
