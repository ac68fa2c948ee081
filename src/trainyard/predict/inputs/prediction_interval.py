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
from trainyard.machine import Machine, find_machine
from trainyard.predict.inputs import constant_sets
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.constant_sets import family_of
from trainyard.predict.inputs.fitted_range import FORMAT, describe_doublings
from trainyard.predict.inputs.machine_model import MachineModel
from trainyard.predict.time.step_shares import step_shares


class Interval(NamedTuple):
    """An 80 % prediction interval as multiples of the predicted step. `uncalibrated_because`: why it is assumed, a
    clause; empty if trainings at the same distance were left out of the fit and measured, enough of them to know how
    often such an interval holds."""

    low: float
    high: float
    uncalibrated_because: str = ""

    @property
    def calibrated(self) -> bool:
        return not self.uncalibrated_because

    def bounds(self, wall_ns: int) -> tuple[int, int]:
        """Its bounds in ns, extended to include the predicted step `wall_ns`."""
        return min(wall_ns, round(wall_ns * self.low)), max(wall_ns, round(wall_ns * self.high))


ASSUMED_LOW, ASSUMED_HIGH = 0.7, 2.0
"""The range that is assumed without measurements of similar trainings, as multiples of the prediction."""


def uncalibrated(because: str) -> Interval:
    """The assumed range. `because`: why the interval is not calibrated, a clause."""
    return Interval(ASSUMED_LOW, ASSUMED_HIGH, because)


_FEWEST_ROWS = 10
"""Fewest rows of a set of constants with calibrated intervals: the left-out sources were predicted by larger sets."""


_SAME_RATE = 0.05
"""Relative difference of two claims of one rate: data sheets are rounded."""


class Distance(NamedTuple):
    """How a training differs from the fitted ones of its kind of model: the `owners` of their sources, whether rows of
    its machine were fitted, of the same release of its software, and the doublings `outside` of their range by feature
    (`fitted_range.FEATURES`). `above_largest`: doublings of its ranks above those of the largest fitted training of all
    kinds, devices and software. `host_share`, `attention_share`: of its step (`step_shares.StepShares`)."""

    kind: str
    owners: int
    machine_fitted: bool
    same_software: bool
    outside: Mapping[str, float]
    above_largest: float = 0.0
    host_share: float = 0.0
    attention_share: float = 0.0

    @property
    def sizes_outside(self) -> dict[str, float]:
        """Doublings outside of the range by feature, without the number format."""
        return {name: doublings for name, doublings in self.outside.items() if name != FORMAT}

    @property
    def doublings(self) -> float:
        """Sum of `sizes_outside`."""
        return sum(self.sizes_outside.values())

    @property
    def format_fitted(self) -> bool:
        """Whether trainings with matrix products in its number format were fitted."""
        return FORMAT not in self.outside


class ErrorScale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Means and standard deviations of the error; the latter add in quadrature. `biases`, `kinds`: mean and standard
    deviation of trainings of a source that was not fitted, by kind of model; the latter within the fitted range, if the
    constants average over many owners; `other_machine`,
    `other_software`, `other_format`: in addition, if no rows of that machine, of that release of the software or with
    products in that number format were fitted;
    `doubling`: per doubling outside of the range; `host`: of the logarithm of the host's time, on which a part of the
    step depends (`Distance.host_share`). `quantile`: half the interval's width, in units of the scale.
    `groups`: owners of sources, by constants and kind, that these were estimated from; `most_doublings`: the largest
    distance of several of them; `most_attention`, `most_ranks`, `most_above_largest`: the largest share of attention in
    the step of a row whose source was left out, and the largest distance of a row in ranks, and in ranks above the
    largest training (`Distance.above_largest`)."""

    biases: dict[str, float]
    kinds: dict[str, float]
    other_machine: float
    other_software: float
    other_format: float
    doubling: float
    host: float
    quantile: float
    most_doublings: float
    most_attention: float
    most_ranks: float
    most_above_largest: float
    groups: int
    source: str
    date: str

    def scale(self, distance: Distance) -> float:
        """Standard deviation of the error at a distance."""
        terms = [
            self.kinds[distance.kind] * np.sqrt(1 + 1 / distance.owners),
            0.0 if distance.machine_fitted else self.other_machine,
            0.0 if distance.same_software else self.other_software,
            0.0 if distance.format_fitted else self.other_format,
            self.doubling * distance.doublings,
            self.host * distance.host_share,
        ]
        return float(np.sqrt(np.sum(np.square(terms))))

    def interval(self, distance: Distance) -> Interval:
        """The 80 % prediction interval at a distance; not calibrated for kinds and distances without measurements."""
        if because := self._uncalibrated_because(distance):
            return uncalibrated(because)
        centre, half = self.biases[distance.kind], self.quantile * self.scale(distance)
        return Interval(float(np.exp(centre - half)), float(np.exp(centre + half)))

    def _uncalibrated_because(self, distance: Distance) -> str:
        """The first reason why an interval at a distance is not calibrated; empty if it is."""
        if distance.kind not in self.kinds:
            return f"the error of {_KINDS[distance.kind]} was not estimated"
        for name, doublings, most in (
            ("the number of ranks is", distance.outside.get("ranks", 0.0), self.most_ranks),
            (f"{describe_doublings(distance.sizes_outside)} are", distance.doublings, self.most_doublings),
        ):
            if doublings > most:
                return (
                    f"{name} {doublings:.1f} doublings outside of the fitted trainings, and the error was only "
                    f"measured up to {most:g}"
                )
        if distance.attention_share > self.most_attention:
            return (
                f"attention takes {_percent(distance.attention_share)} % of the step, and the error was only measured "
                f"up to {_percent(self.most_attention)} %"
            )
        if distance.above_largest > self.most_above_largest:
            return (
                f"it has {2**distance.above_largest:,.1f} times the ranks of the largest fitted training, and the "
                f"error was only measured up to {2**self.most_above_largest:.1f} times"
            )
        return ""


def _percent(share: float) -> str:
    """The percent of a step that an account takes with which the step grows by `share` (`step_shares.StepShares`)."""
    return f"{100 * (2**share - 1):.0f}"


_KINDS = {
    "hybrid": "models with state-space layers", "pictures": "image models", "adapters": "adapters",
    "experts": "mixtures of experts", "dense": "dense decoders",
}  # fmt: skip
"""Kind of model -> its trainings, in words."""
_SOFTWARE = {"fsdp": "FSDP", "megatron": "Megatron"}
"""Family of software -> its name in words."""


def interval_of(model: MachineModel, case: Cases) -> Interval:
    """The interval of a step. `case`: a single case."""
    return intervals_of(model, case)[0]


def intervals_of(model: MachineModel, cases: Cases) -> list[Interval]:
    """The interval of each case's step. Not calibrated if its tensors are offloaded, if the network between nodes is
    oversubscribed or collectives choose from more algorithms than rings and trees, if Muon updates its weights, if
    ranks get unequal numbers of tokens for their experts, if its machine file has other rates than its device, if few
    rows or none of its kind of model and software were fitted, or if they are too far from it. All fitted rows with
    adapters are dense decoders in 8 or 16 bits, those of a single source with adapters on MLPs too."""
    rows = [cases.take(np.array([row])) for row in range(len(cases))]
    intervals = [_interval_at_any_distance(model, case) for case in rows]
    if None not in intervals:
        return [interval for interval in intervals if interval]
    hosts, attentions = step_shares(cases, model.hardware, model.values)  # of all cases at once
    return [
        interval or error_scale().interval(_distance(model, case, host, attention))
        for interval, case, host, attention in zip(intervals, rows, hosts.tolist(), attentions.tolist(), strict=True)
    ]


def _interval_at_any_distance(model: MachineModel, case: Cases) -> Interval | None:
    """The interval of a single case if it does not depend on its distance from the fitted trainings, else None."""
    tuned, kind = model.tuned, kind_of(case)
    if because := _unlike_fitted(model, case):
        return uncalibrated(because)
    if own := tuned.prediction_intervals.get(kind):
        return Interval(*own)
    because = _without_fitted_rows(model, kind)
    return uncalibrated(because) if because else None


def _distance(model: MachineModel, case: Cases, host_share: float, attention_share: float) -> Distance:
    """The distance of a single case from the fitted trainings of its kind."""
    kind = kind_of(case)
    fitted = model.tuned.ranges[kind]
    return Distance(
        kind=kind,
        owners=len(fitted.owners),
        machine_fitted=constant_sets.name_of_device(model.machine) in fitted.machines,
        same_software=model.software in fitted.software,
        outside=fitted.outside(case),
        above_largest=max(0.0, float(np.log2(case.ranks[0] / _largest_fitted()))),
        host_share=host_share,
        attention_share=attention_share,
    )


def _unlike_fitted(model: MachineModel, case: Cases) -> str:
    """Why no fitted training is like a single case, of the parts that none of them has; empty if they have them all."""
    if _has_other_rates(model.machine):
        return (
            f"the machine file has other peaks or another memory bandwidth than {model.machine.device.name}, on which "
            "trainings were fitted"
        )
    if any(float(level.ranks[0]) < float(case.ranks[0]) for level in model.hardware.fabric):
        return "no training was fitted on a network with oversubscription"
    if any(link and link.algorithms for link in (model.machine.intra_node, model.machine.inter_node)):
        return "no training was fitted whose collectives choose from more algorithms than rings and trees"
    if float(case.offload[0]) or float(case.offloaded_layers[0]):
        return "no training that offloads to host memory was fitted"
    if float(case.muon_iterations[0]):
        return "no training with Muon was fitted"
    if float(case.rank_imbalance[0]) != 1:
        return "no training with a stated imbalance of experts was fitted"
    if float(case.quantised[0]):
        return "no training with 4-bit weights was fitted"
    if float((case.adapters * case.experts)[0]):
        return "adapters were only fitted in dense decoders"
    if float(case.mlp_adapters[0]):
        return "adapters on MLPs were only fitted to one source, with Transformer Engine on H100"
    return ""


def _has_other_rates(machine: Machine) -> bool:
    """Whether a peak or the memory bandwidth of a machine without constants of its own differs by more than
    `_SAME_RATE` from those of the machine in the package that has the same device."""
    shipped = find_machine(machine.device.name)
    if machine.calibration or not shipped:
        return False
    own, known = machine.device, shipped.device
    pairs = [(claim, known.peak[dtype]) for dtype, claim in own.peak.items() if dtype in known.peak]
    return any(
        abs(claim.value / of_package.value - 1) > _SAME_RATE
        for claim, of_package in (*pairs, (own.bandwidth, known.bandwidth))
    )


def _without_fitted_rows(model: MachineModel, kind: str) -> str:
    """Why the constants of a machine say little about a kind of model: they are assumed, of few rows, of other software
    or of other kinds; empty if they are of enough rows like it."""
    tuned, device = model.tuned, model.machine.device.name
    if not tuned.rows:
        if model.machine.calibration:
            return "its own constants were fitted to runs of fewer than four jobs"
        return f"no training on {device} was fitted"
    machines = sorted({name for fitted in tuned.ranges.values() for name in fitted.machines})
    own, other = (_SOFTWARE.get(family_of(name), name) for name in (model.software, tuned.software))
    if family_of(model.software) != family_of(tuned.software):
        if constant_sets.name_of_device(model.machine) not in machines:
            return f"no training on {device} was fitted: the constants are those of {', '.join(machines)} with {other}"
        return f"no training with {own} on {device} was fitted, only with {other}"
    if kind not in tuned.ranges:
        return (
            f"the constants of {device} are {tuned.name}, fitted to trainings with {own} on {', '.join(machines)}, "
            f"none of them of {_KINDS[kind]}"
        )
    if tuned.rows < _FEWEST_ROWS:
        return (
            f"the constants were fitted to {tuned.rows} trainings on {', '.join(machines)}, fewer than {_FEWEST_ROWS}"
        )
    return ""


@cache
def _largest_fitted() -> float:
    """Ranks of the largest training that any set of constants was fitted to."""
    return max(fitted.most["ranks"] for known in constant_sets.known() for fitted in known.ranges.values())


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
