"""What other numbers of devices would come to: the fastest layout at each, of the same batch and of one that grows.

Strong scaling trains the same samples a step on all of them, weak scaling the same samples a device. The best layout
changes with the number, so each is searched anew.
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
"""Of the devices that were asked for."""
FARTHEST = 10
"""As many more as are looked at, where the same batch goes on to gain by them."""
PAYS = 0.5
"""Of its ideal, twice the speed: what a doubling must add to be worth saying."""


class ScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What so many devices come to, or `why` they do not. `efficiency`: tokens a second and device, over those of the
    smallest number that has a layout."""

    devices: int
    samples: int
    point: LayoutPoint | None = None
    efficiency: float = 0.0
    why: str = ""

    def __post_init__(self) -> None:
        if (self.point is None) != bool(self.why):
            raise BadInput(f"{self.devices} devices have a layout, or a reason why not.")


class DeviceScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Both by rising number of devices. `says`: what more devices buy, and where it stops."""

    strong: tuple[ScalingPoint, ...]
    weak: tuple[ScalingPoint, ...]
    says: str


def scaling(
    wanted: PlannerInput,
    machine: Machine,
    framework: Framework,
    budget: float,
    asked: LayoutPoint,
    refuses: Callable[[Job], None] = lambda _: None,
) -> DeviceScaling:
    """`asked`: the best of what is `wanted`, which is not looked for again. `budget`: tokens, for days and dollars."""

    def reached(devices: int, samples: int) -> ScalingPoint:
        if (devices, samples) == (wanted.devices, wanted.samples):
            return ScalingPoint(devices=devices, samples=samples, point=asked)
        other = wanted._replace(devices=devices, samples=samples)
        try:
            limits.check_value("devices", devices, limits.DEVICES)
            limits.check_value("samples", samples, limits.SAMPLES)
            return ScalingPoint(
                devices=devices, samples=samples, point=fastest(other, machine, framework, budget, refuses).point
            )
        except BadInput as error:
            return ScalingPoint(devices=devices, samples=samples, why=error.says)

    each = machine.device.ranks
    strong = [reached(ranks, wanted.samples) for ranks in _times(wanted.devices, each)]
    while len(strong) < len(DOUBLINGS) + FARTHEST and _pays((strong[-2], strong[-1])):
        strong.append(reached(2 * strong[-1].devices, wanted.samples))
    grown = [(ranks, wanted.samples * ranks / wanted.devices) for ranks in _times(wanted.devices, each)]
    weak = [reached(ranks, int(samples)) for ranks, samples in grown if samples % 1 == 0]
    found = _whole(strong, each)
    return DeviceScaling(strong=_judged(found), weak=_judged(_whole(weak, each)), says=says(found))


def _whole(found: Sequence[ScalingPoint], each: int) -> list[ScalingPoint]:
    """In devices, of which each has so many ranks."""
    return [msgspec.structs.replace(one, devices=one.devices // each) for one in found]


def _times(ranks: int, each: int) -> list[int]:
    """Doubled and halved, whole devices only."""
    return [int(ranks * 2.0**doubling) for doubling in DOUBLINGS if ranks * 2.0**doubling % each == 0]


def _pays(pair: tuple[ScalingPoint, ScalingPoint]) -> bool:
    before, after = pair[0].point, pair[1].point
    return before is not None and after is not None and _gain(before, after) >= PAYS


def _judged(found: list[ScalingPoint]) -> tuple[ScalingPoint, ...]:
    known = [one.point for one in found if one.point]
    first = known[0].bill.tokens_per_s / known[0].devices if known else 1.0
    return tuple(
        msgspec.structs.replace(one, efficiency=one.point.bill.tokens_per_s / one.point.devices / first)
        if one.point
        else one
        for one in found
    )


def says(found: Sequence[ScalingPoint]) -> str:
    """The last doubling that pays, and the one after it. Speed is a whole run's, with what failures take."""
    pairs = list(pairwise(found))
    paying = [place for place, pair in enumerate(pairs) if _pays(pair)]
    meant = f"A doubling pays where it adds {100 * PAYS:.0f} % to the speed of training the same batch; 100 % is ideal."
    if not paying:
        return f"No doubling between {found[0].devices:,} and {found[-1].devices:,} devices pays. {meant}"
    last = pairs[paying[-1]]
    told = f"More devices pay up to {last[1].devices:,}: {_told(*last)}"
    if paying[-1] + 1 == len(pairs):
        return f"{told}; more were not looked at. {meant}"
    return f"{told}, {_told(*pairs[paying[-1] + 1])}. {meant}"


def _told(before: ScalingPoint, after: ScalingPoint) -> str:
    """What a doubling adds, with days, and dollars where there is a price."""
    if before.point is None or after.point is None:
        return f"doubling {before.devices:,} leads nowhere: {before.why or after.why}".rstrip(".")
    a, b = before.point.bill, after.point.bill
    paid = f", ${a.dollars:,.0f} become ${b.dollars:,.0f}" if a.dollars is not None and b.dollars is not None else ""
    spent = f" ({a.days:,.1f} days become {b.days:,.1f}{paid})" if a.days else ""
    return f"doubling {before.devices:,} adds {100 * _gain(before.point, after.point):.0f} %{spent}"


def _gain(before: LayoutPoint, after: LayoutPoint) -> float:
    """What is added to the speed of a run, over what there was: 1 is ideal of twice the devices."""
    return _speed(after) / _speed(before) - 1


def _speed(point: LayoutPoint) -> float:
    return point.bill.tokens_per_s * (point.bill.goodput.share if point.bill.goodput else 1.0)
