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
from trainyard.predict.economics.step_cost import Bill
from trainyard.predict.economics.training_budget import TrainingBudget
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search import points
from trainyard.predict.search.points import LayoutPoint
from trainyard.predict.search.search import fastest
from trainyard.units import duration_unit, show_dollars

DOUBLINGS = range(-3, 4)
"""Exponents of 2 by which the requested device count is multiplied."""
MAX_FURTHER_DOUBLINGS = 10
"""Largest number of further doublings of strong scaling, which are tried while they pay."""
_LEAST_LOST_GAIN = 0.01
"""Least part of a gain lost to failures that is explained."""
MIN_GAIN_PER_DOUBLING = 0.5
"""Least gain in speed of a doubling that pays; the ideal gain is 1."""


class ScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest layout on a number of devices, or the `reason` if there is none. `efficiency`: tokens/s/device,
    relative to the smallest device count that has a layout."""

    devices: int
    samples: int
    point: LayoutPoint | None = None
    efficiency: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.point is None) != bool(self.reason):
            raise BadInput(f"{self.devices} devices must have either a layout or a reason why there is none.")


class DeviceScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Strong and weak scaling, in ascending order of devices. `summary`: the summary of the gain from more devices."""

    strong: tuple[ScalingPoint, ...]
    weak: tuple[ScalingPoint, ...]
    summary: str


def scaling(
    wanted: PlannerInput,
    machine: Machine,
    framework: Framework,
    budget: TrainingBudget,
    known_best: LayoutPoint,
    refuses: Callable[[Job], None] = lambda _: None,
) -> DeviceScaling:
    """Finds the fastest layouts on other device counts, doubled and halved from that of `wanted`. `wanted.devices`
    counts ranks; the result counts devices. `known_best`: the best layout of `wanted`, which is not searched again.
    `budget`: for days and dollars; `refuses`: raises `BadJob` for a job that cannot be run."""

    def plan_for(devices: int, samples: int) -> ScalingPoint:
        """The fastest layout on `devices` devices with `samples` per step; without a layout, the reason why there is
        none."""
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
            return ScalingPoint(devices=devices, samples=samples, reason=error.message)

    ranks_per_device = machine.device.ranks
    strong = [plan_for(ranks, wanted.samples) for ranks in _scaled_rank_counts(wanted.devices, ranks_per_device)]
    while len(strong) < len(DOUBLINGS) + MAX_FURTHER_DOUBLINGS and _is_worthwhile((strong[-2], strong[-1])):
        strong.append(plan_for(2 * strong[-1].devices, wanted.samples))
    # Only counts whose samples are whole.
    weak_sizes = [
        (ranks, wanted.samples * ranks / wanted.devices)
        for ranks in _scaled_rank_counts(wanted.devices, ranks_per_device)
    ]
    weak = [plan_for(ranks, int(samples)) for ranks, samples in weak_sizes if samples % 1 == 0]
    strong = _count_devices(strong, ranks_per_device)
    return DeviceScaling(
        strong=_set_efficiency(strong),
        weak=_set_efficiency(_count_devices(weak, ranks_per_device)),
        summary=summarize(strong),
    )


def _count_devices(scaled_points: Sequence[ScalingPoint], ranks_per_device: int) -> list[ScalingPoint]:
    """Converts the device counts from ranks to devices."""
    return [
        msgspec.structs.replace(
            scaled,
            devices=scaled.devices // ranks_per_device,
            point=points.count_devices(scaled.point, ranks_per_device) if scaled.point else None,
        )
        for scaled in scaled_points
    ]


def _scaled_rank_counts(ranks: int, ranks_per_device: int) -> list[int]:
    """Rank counts: `ranks` doubled and halved, whole devices only."""
    return [int(ranks * 2.0**doubling) for doubling in DOUBLINGS if ranks * 2.0**doubling % ranks_per_device == 0]


def _is_worthwhile(pair: tuple[ScalingPoint, ScalingPoint]) -> bool:
    """Whether the doubling from the first to the second point has layouts on both, and gains at least
    `MIN_GAIN_PER_DOUBLING`."""
    before, after = pair[0].point, pair[1].point
    return before is not None and after is not None and _relative_gain(before, after) >= MIN_GAIN_PER_DOUBLING


def _set_efficiency(points: list[ScalingPoint]) -> tuple[ScalingPoint, ...]:
    """Sets each point's tokens/s/device relative to that of the first point with a layout."""
    layouts = [point.point for point in points if point.point]
    first_tokens_per_s_per_device = layouts[0].bill.tokens_per_s / layouts[0].devices if layouts else 1.0
    return tuple(
        msgspec.structs.replace(
            point, efficiency=point.point.bill.tokens_per_s / point.point.devices / first_tokens_per_s_per_device
        )
        if point.point
        else point
        for point in points
    )


def summarize(points: Sequence[ScalingPoint]) -> str:
    """A sentence on the last doubling that pays, and on the next one. `points`: ascending, each twice the devices of
    the point before. Speed includes the time lost to failures."""
    pairs = list(pairwise(points))
    worthwhile = [index for index, pair in enumerate(pairs) if _is_worthwhile(pair)]
    least_percent = f"{100 * MIN_GAIN_PER_DOUBLING:.0f} %"
    explanation = (
        f"A doubling pays if it adds at least {least_percent} to the speed with the same batch; 100 % is ideal."
    )
    if not worthwhile:
        return f"No doubling between {points[0].devices:,} and {points[-1].devices:,} devices pays. {explanation}"
    last = pairs[worthwhile[-1]]
    sentence = f"More devices pay up to {last[1].devices:,}: {_describe_doubling(*last)}"
    if worthwhile[-1] + 1 == len(pairs):
        return f"{sentence}; more were not searched. {explanation}"
    return f"{sentence}, {_describe_doubling(*pairs[worthwhile[-1] + 1])}. {explanation}"


def _describe_doubling(before: ScalingPoint, after: ScalingPoint) -> str:
    """The gain of a doubling, with days, and with dollars if there is a price."""
    if before.point is None or after.point is None:
        return f"doubling {before.devices:,} is infeasible: {before.reason or after.reason}".rstrip(".")
    bill_before, bill_after = before.point.bill, after.point.bill
    dollars = (
        f", {show_dollars(bill_before.dollars)} become {show_dollars(bill_after.dollars)}"
        if bill_before.dollars is not None and bill_after.dollars is not None
        else ""
    )
    duration = ""
    if bill_before.days:
        per_day, unit = duration_unit(bill_after.days)
        times = f"{per_day * bill_before.days:,.1f} {unit} become {per_day * bill_after.days:,.1f}"
        duration = f" ({times}{dollars}{_describe_lost_gain(bill_before, bill_after)})"
    return f"doubling {before.devices:,} adds {100 * _relative_gain(before.point, after.point):.0f} %{duration}"


def _describe_lost_gain(before: Bill, after: Bill) -> str:
    """The gain without failures, and the shares of the time that they take, if they take part of the gain; else
    empty."""
    if before.goodput is None or after.goodput is None:
        return ""
    gain_of_steps = after.tokens_per_s / before.tokens_per_s - 1
    if gain_of_steps * (1 - after.goodput.share / before.goodput.share) < _LEAST_LOST_GAIN:
        return ""
    lost_before, lost_after = (100 * (1 - bill.goodput.share) for bill in (before, after) if bill.goodput)
    return (
        f"; {100 * gain_of_steps:.0f} % without failures, restarts and checkpoints, which take {lost_before:.1f} and "
        f"{lost_after:.1f} % of the time"
    )


def _relative_gain(before: LayoutPoint, after: LayoutPoint) -> float:
    """Relative gain in the speed of a run: 1 is ideal for twice the devices."""
    return _effective_tokens_per_s(after) / _effective_tokens_per_s(before) - 1


def _effective_tokens_per_s(point: LayoutPoint) -> float:
    """Tokens/s of a run, reduced by the fraction of time lost to failures."""
    return point.bill.tokens_per_s * (point.bill.goodput.share if point.bill.goodput else 1.0)
