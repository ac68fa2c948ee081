"""How many micro-batches a rank of our own runner's pipeline keeps at once, in whole stages, as columns.

Of the first rank or the last, by schedule; a test holds it against the order in which ranks do their part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.pipeline import schedules

_KEPT = ("1f1b", "interleaved", "zero_bubble", "zbv", "dualpipev")
"""Schedules that keep different numbers; the others keep all."""
_LATE = ("zero_bubble", "zbv")
"""Those that leave several gradients of weights for later."""


def kept(cases: Cases, first: bool) -> Column:
    """As many as a rank goes forward with before it goes back, and where weights' gradients come late as many as the
    first rank does so with; in breadth first all. In a V it is of the last rank those that it has when its last round
    is done and it has gone back from one."""
    round_ = np.floor(cases.accumulate / np.maximum(1.0, np.floor(cases.accumulate / cases.pp)))
    others, depth = (cases.interleave - 1) * round_ + 1, cases.pp - 1 if first else np.zeros(1)
    chunks = [others + depth, others + 2 * depth, others + cases.pp - 1, 2 * cases.pp - (not first), 2 * cases.pp + 1]
    most = np.select(_by(cases, _KEPT), chunks, cases.accumulate * cases.interleave) / cases.interleave
    return np.where(cases.pp > 1, np.minimum(most, cases.accumulate), 1.0)


def late(cases: Cases, first: bool) -> Column:
    """Of those, whose gradients of weights wait. torch has none of the first stage wait, whose backward pass is whole.
    In zero bubble it is one on each rank more than on the one before; in a V the last rank leaves all of its last round
    for the end."""
    chunks = [(cases.interleave > 1) * 1.0, np.ones(1)] if first else [cases.pp, 2 * cases.pp - 2]
    most = np.select(_by(cases, _LATE), chunks, 0.0) / cases.interleave
    return np.where(cases.pp > 1, np.minimum(most, cases.accumulate), 0.0)


def _by(cases: Cases, names: Sequence[str]) -> list[np.ndarray]:
    return [schedules.among(cases.schedule, (name,)) for name in names]
