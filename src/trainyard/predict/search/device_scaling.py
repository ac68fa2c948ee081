"""Predicted scaling: the fastest layout on other device counts, with the same batch and with one that grows.

Strong scaling keeps the samples per step, weak scaling the samples per device. The best layout depends on the device
count, so each count has its own search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from trainyard import limits
from trainyard.errors import BadInput
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search.points import LayoutPoint
from trainyard.predict.search.search import fastest

DOUBLINGS = range(-3, 4)
"""Exponents of 2 by which the requested device count is multiplied."""
FARTHEST = 10
"""Largest number of further doublings of strong scaling, which are tried while they pay."""
PAYS = 0.5
"""Least gain in speed of a doubling that pays; the ideal gain is 1."""


class ScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest layout on a number of devices, or the reason `why` there is none. `efficiency`: tokens/s/device,
    relative to the smallest device count that has a layout."""

    devices: int
    samples: int
    point: LayoutPoint | None = None
    efficiency: float = 0.0
    why: str = ""

    def __post_init__(self) -> None:
        if (self.point is None) != bool(self.why):
            raise BadInput(f"{self.devices} devices must have either a layout or a reason why there is none.")


class DeviceScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Strong and weak scaling, in ascending order of devices. `says`: a summary of the gain from more devices."""

    strong: tuple[ScalingPoint, ...]
    weak: tuple[ScalingPoint, ...]
    says: str


def scaling(
    wanted: PlannerInput,
    machine: Machine,
    framework: Framework,
    budget: float,
    known_best: LayoutPoint,
    refuses: Callable[[Job], None] = lambda _: None,
) -> DeviceScaling:
    """Searches other device counts. `known_best`: the best layout of `wanted`, which is not searched again. `budget`:
    tokens to train on, for days and dollars."""

    def plan_for(devices: int, samples: int) -> ScalingPoint:
        if (devices, samples) == (wanted.devices, wanted.samples):
            return ScalingPoint(devices=devices, samples=samples, point=known_best)
        wanted_there = wanted._replace(devices=devices, samples=samples)
        try:
            limits.check_value("devices", devices, limits.DEVICES)
            limits.check_value("samples", samples, limits.SAMPLES)
            return ScalingPoint(
                devices=devices, samples=samples, point=fastest(wanted_there, machine, framework, budget, refuses).point
            )
        except BadInput as error:
            return ScalingPoint(devices=devices, samples=samples, why=error.says)

    ranks_per_device = machine.device.ranks
    strong = [plan_for(ranks, wanted.samples) for ranks in _times(wanted.devices, ranks_per_device)]
    while len(strong) < len(DOUBLINGS) + FARTHEST and _pays((strong[-2], strong[-1])):
        strong.append(plan_for(2 * strong[-1].devices, wanted.samples))
    scaled = [(ranks, wanted.samples * ranks / wanted.devices) for ranks in _times(wanted.devices, ranks_per_device)]
    weak = [plan_for(ranks, int(samples)) for ranks, samples in scaled if samples % 1 == 0]
    points = _per_device(strong, ranks_per_device)
    return DeviceScaling(
        strong=_with_efficiency(points),
        weak=_with_efficiency(_per_device(weak, ranks_per_device)),
        says=summarize(points),
    )


def _per_device(points: Sequence[ScalingPoint], ranks_per_device: int) -> list[ScalingPoint]:
    """Converts the device counts from ranks to devices."""
    return [msgspec.structs.replace(point, devices=point.devices // ranks_per_device) for point in points]


def _times(ranks: int, ranks_per_device: int) -> list[int]:
    """Rank counts: `ranks` doubled and halved, whole devices only."""
    return [int(ranks * 2.0**doubling) for doubling in DOUBLINGS if ranks * 2.0**doubling % ranks_per_device == 0]


def _pays(pair: tuple[ScalingPoint, ScalingPoint]) -> bool:
    before, after = pair[0].point, pair[1].point
    return before is not None and after is not None and _gain(before, after) >= PAYS


def _with_efficiency(points: list[ScalingPoint]) -> tuple[ScalingPoint, ...]:
    known = [point.point for point in points if point.point]
    first = known[0].bill.tokens_per_s / known[0].devices if known else 1.0
    return tuple(
        msgspec.structs.replace(point, efficiency=point.point.bill.tokens_per_s / point.point.devices / first)
        if point.point
        else point
        for point in points
    )


def summarize(points: Sequence[ScalingPoint]) -> str:
    """A sentence on the last doubling that pays, and on the one after it. Speed includes the time lost to failures."""
    pairs = list(pairwise(points))
    paying = [index for index, pair in enumerate(pairs) if _pays(pair)]
    explanation = (
        f"A doubling pays if it adds at least {100 * PAYS:.0f} % to the speed with the same batch; 100 % is ideal."
    )
    if not paying:
        return f"No doubling between {points[0].devices:,} and {points[-1].devices:,} devices pays. {explanation}"
    last = pairs[paying[-1]]
    sentence = f"More devices pay up to {last[1].devices:,}: {_describe_doubling(*last)}"
    if paying[-1] + 1 == len(pairs):
        return f"{sentence}; more were not searched. {explanation}"
    return f"{sentence}, {_describe_doubling(*pairs[paying[-1] + 1])}. {explanation}"


def _describe_doubling(before: ScalingPoint, after: ScalingPoint) -> str:
    """The gain of a doubling, with days, and with dollars if there is a price."""
    if before.point is None or after.point is None:
        return f"doubling {before.devices:,} is infeasible: {before.why or after.why}".rstrip(".")
    a, b = before.point.bill, after.point.bill
    dollars = f", ${a.dollars:,.0f} become ${b.dollars:,.0f}" if a.dollars is not None and b.dollars is not None else ""
    days = f" ({a.days:,.1f} days become {b.days:,.1f}{dollars})" if a.days else ""
    return f"doubling {before.devices:,} adds {100 * _gain(before.point, after.point):.0f} %{days}"


def _gain(before: LayoutPoint, after: LayoutPoint) -> float:
    """Relative gain in the speed of a run: 1 is ideal for twice the devices."""
    return _speed(after) / _speed(before) - 1


def _speed(point: LayoutPoint) -> float:
    return point.bill.tokens_per_s * (point.bill.goodput.share if point.bill.goodput else 1.0)
