"""The constants of a comparison: when a difference exceeds what rounding explains.

The error of a tensor of B is compared with the errors of A and its jittered replicas, all relative to the float64
reference of A. If B's rounding had the same distribution as that of A, the ratio of its error to the largest of theirs
would exceed a quantile that follows from the number of replicas and the degrees of freedom of the errors
(`ratio_quantile.py`). Kernels and layouts do not have the same distribution: `MARGIN` covers this.
"""

from __future__ import annotations

import msgspec

FALSE_ALARM = 0.01
"""Probability that any tensor of a comparison raises an alarm if B's errors have the distribution of A's replicas."""
MARGIN = 2.0
"""Factor on the limits for kernels, compilers and layouts, whose rounding is not that of the replicas. Benign pairs of
trainings that were measured with it: docs/explanation/numerics.md."""
UNINFORMATIVE = 0.5
"""Relative error that A's own rounding reaches from which a tensor's values say nothing, or a limit hides a fault."""
MIN_REPLICAS = 2
"""Replicas without which the spread of A's rounding is not known."""
OTHER_PRECISION = 0.1
"""Share of the tensors with another dtype on the two sides from which the sides compute in other number formats. With
fewer, each of these tensors is a difference."""
UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "complex128": 2.0**-53,
    "float32": 2.0**-24,
    "complex64": 2.0**-24,
    "float16": 2.0**-11,
    "complex32": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e4m3fnuz": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "float8_e5m2fnuz": 2.0**-3,
}
"""Dtype -> largest relative error of rounding to nearest. Other dtypes hold integers, which are not rounded."""


class ComparisonRule(msgspec.Struct, frozen=True, kw_only=True):
    """How limits follow from A's rounding. `false_alarm`: probability of any alarm if B rounds as A's replicas do;
    `margin`: factor on the limits for other kernels and layouts; `replicas`: jittered runs of A; `tensors`: the number
    of tensors among which the probability is divided."""

    false_alarm: float = FALSE_ALARM
    margin: float = MARGIN
    replicas: int
    tensors: int
