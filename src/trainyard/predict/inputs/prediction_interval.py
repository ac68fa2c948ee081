"""80 % prediction intervals of a step time, which widen with the distance of a training from the fitted ones.

The error of a prediction is the logarithm of the measured over the predicted step. Its scale is estimated from rows
whose whole source or device was left out of the fit (validation/intervals.py), and is stored in
data/prediction_interval.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

import msgspec
import numpy as np

from trainyard.formats import toml
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.constant_sets import family_of
from trainyard.predict.inputs.fitted_range import SEQUENCE
from trainyard.predict.inputs.machine_model import MachineModel


class Interval(NamedTuple):
    """An 80 % prediction interval as multiples of the predicted step. `calibrated`: whether trainings at the same
    distance were left out of the fit and measured, enough of them to know how often such an interval holds."""

    low: float
    high: float
    calibrated: bool

    def bounds(self, wall_ns: int) -> tuple[int, int]:
        """Its bounds in ns, extended to include the predicted step `wall_ns`."""
        return min(wall_ns, round(wall_ns * self.low)), max(wall_ns, round(wall_ns * self.high))


NOT_CALIBRATED = Interval(0.7, 2.0, calibrated=False)
"""The range that is assumed without measurements of similar trainings."""


_FEWEST_ROWS = 10
"""Fewest rows of a set of constants with calibrated intervals: the left-out sources were predicted by larger sets."""


class Distance(NamedTuple):
    """How a training differs from the fitted ones of its kind of model: the `owners` of their sources, whether rows of
    its machine were fitted, of the same release of its software, and the doublings `outside` of their range by feature
    (`fitted_range.FEATURES`)."""

    kind: str
    owners: int
    machine_fitted: bool
    same_software: bool
    outside: Mapping[str, float]

    @property
    def doublings(self) -> float:
        """Doublings outside of the range, summed over the features."""
        return sum(self.outside.values())

    @property
    def of_sequence(self) -> float:
        """Doublings outside of the range in the features of `SEQUENCE`."""
        return sum(self.outside.get(name, 0.0) for name in SEQUENCE)


class ErrorScale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Standard deviations of the error, which add in quadrature. `kinds`: of trainings of a source that was not fitted,
    within the fitted range, by kind of model, if the constants average over many owners; `other_machine`,
    `other_software`: in addition, if no rows of that machine or of that release of the software were fitted;
    `doubling`: per doubling outside of the range. `quantile`: half the interval's width, in units of the scale.
    `groups`: owners of sources, by constants and kind, that these were estimated from; `most_doublings`: the largest
    distance of several of them; `most_sequence`: the largest distance of a row in the features of `SEQUENCE`."""

    kinds: dict[str, float]
    other_machine: float
    other_software: float
    doubling: float
    quantile: float
    most_doublings: float
    most_sequence: float
    groups: int
    source: str
    date: str

    def scale(self, distance: Distance) -> float:
        """Standard deviation of the error at a distance."""
        terms = [
            self.kinds[distance.kind] * np.sqrt(1 + 1 / distance.owners),
            0.0 if distance.machine_fitted else self.other_machine,
            0.0 if distance.same_software else self.other_software,
            self.doubling * distance.doublings,
        ]
        return float(np.sqrt(np.sum(np.square(terms))))

    def interval(self, distance: Distance) -> Interval:
        """The 80 % prediction interval at a distance; not calibrated for kinds and distances without measurements."""
        is_farther = distance.doublings > self.most_doublings or distance.of_sequence > self.most_sequence
        if distance.kind not in self.kinds or is_farther:
            return NOT_CALIBRATED
        half = self.quantile * self.scale(distance)
        return Interval(float(np.exp(-half)), float(np.exp(half)), calibrated=True)


def interval_of(model: MachineModel, case: Cases) -> Interval:
    """The interval of a step. `case`: a single case. Not calibrated if its tensors are offloaded, if the network
    between nodes is oversubscribed, if Muon updates its weights, if few rows or none of its kind of model and software
    were fitted, or if they are too far from it. All fitted rows with adapters have them on attention's matrices of
    dense decoders, in 8 or 16 bits."""
    tuned, kind = model.tuned, kind_of(case)
    unlike_fitted_adapters = case.mlp_adapters + case.quantised + case.adapters * case.experts
    offloads = float(case.offload[0]) or float(case.offloaded_layers[0])
    if model.machine.fabric or offloads or float(unlike_fitted_adapters[0]) or float(case.muon_iterations[0]):
        return NOT_CALIBRATED
    if own := tuned.prediction_intervals.get(kind):
        return Interval(*own, calibrated=True)
    fitted = tuned.ranges.get(kind)
    if not fitted or tuned.rows < _FEWEST_ROWS or family_of(model.software) != family_of(tuned.software):
        return NOT_CALIBRATED
    distance = Distance(
        kind=kind,
        owners=len(fitted.owners),
        machine_fitted=model.machine.name in fitted.machines,
        same_software=model.software in fitted.software,
        outside=fitted.outside(case),
    )
    return error_scale().interval(distance)


def kind_of(case: Cases) -> str:
    """The kind of model of a single case: hybrid, pictures (a vision model), adapters, experts or dense."""
    if float(case.space_layers[0]):
        return "hybrid"
    if float(case.lead_parameters[0]):
        return "pictures"
    return (
        "adapters"
        if float(case.adapters[0] + case.mlp_adapters[0])
        else "experts"
        if float(case.experts[0])
        else "dense"
    )


@cache
def error_scale() -> ErrorScale:
    """The scale in the package."""
    text = (resources.files("trainyard") / "data" / "prediction_interval.toml").read_text("utf-8")
    return msgspec.convert(toml.loads(text), ErrorScale)
