"""How far a training is from those that a set of constants was fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2

import msgspec
import numpy as np

from trainyard.predict.inputs.cases import Cases, Column

FORMAT = "bits"
"""The feature of the number format, of which there are two."""
_LABELS = {
    "ranks": "ranks", "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "width": "width", "seq_len": "sequence length",
    "tokens": "tokens of a micro-batch", "accumulate": "micro-batches", FORMAT: "bits",
}  # fmt: skip
FEATURES = tuple(_LABELS)
"""Sizes of a training that are compared with those of the fitted ones; `tokens`: of a micro-batch, `accumulate`:
micro-batches of a step, `bits`: of the values in matrix products."""


def features(cases: Cases) -> dict[str, Column]:
    """Each of `FEATURES`, [case]."""
    values = {name: getattr(cases, name) for name in FEATURES if name != FORMAT}
    return values | {FORMAT: np.where(cases.low_precision > 0, 8.0, 16.0)}


class FittedRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The trainings of one kind of model that a set of constants was fitted to: their number, the owners of their
    sources, their machines and releases of software (`ConstantSet.software`), and the least and largest value of each
    feature."""

    rows: int
    owners: tuple[str, ...]
    machines: tuple[str, ...]
    software: tuple[str, ...]
    least: dict[str, float]
    most: dict[str, float]

    def outside(self, case: Cases) -> dict[str, float]:
        """How many doublings a single case is outside of the range, by feature; without those inside of it."""
        doublings: dict[str, float] = {}
        for name, column in features(case).items():
            value = float(column[0])
            ratio = max(value / self.most[name], self.least[name] / value)
            if ratio > 1:
                doublings[name] = log2(ratio)
        return doublings


def describe_doublings(outside: Mapping[str, float]) -> str:
    """The features that are outside of a range, the farthest first, in words. `outside`: as `FittedRange.outside`
    returns."""
    return ", ".join(_LABELS[name] for name in sorted(outside, key=lambda name: -outside[name]))


def range_of(cases: Cases, owners: Sequence[str], machines: Sequence[str], software: Sequence[str]) -> FittedRange:
    """The range of `cases`. `owners`, `machines`, `software`: of each case."""
    values = features(cases)
    return FittedRange(
        rows=len(owners),
        owners=tuple(sorted(set(owners))),
        machines=tuple(sorted(set(machines))),
        software=tuple(sorted(set(software))),
        least={name: float(np.min(column)) for name, column in values.items()},
        most={name: float(np.max(column)) for name, column in values.items()},
    )
