"""A cluster of unlike parts: each so many devices of one machine."""

from __future__ import annotations

from itertools import permutations
from math import factorial, gcd
from typing import NamedTuple

from trainyard import limits, machine, words
from trainyard.errors import BadInput
from trainyard.machine import Machine
from trainyard.predict.inputs import machine_model
from trainyard.predict.inputs.constant_sets import ConstantSet
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.memory.framework_memory import USABLE

MOST = 4
"""Parts of a cluster."""


class FleetPart(NamedTuple):
    machine: Machine
    devices: int

    def __str__(self) -> str:
        return f"{self.machine.name}:{self.devices}"

    @property
    def ranks(self) -> int:
        return self.devices * self.machine.device.ranks

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.machine.per_node)


def parts(text: str) -> tuple[FleetPart, ...]:
    """Of `h100:64,mine.toml:128`. Raises `BadInput`, and what `machine.load` does."""
    found: list[FleetPart] = []
    for one in text.split(","):
        name, _, count = one.strip().rpartition(":")
        if not name:
            name = one.strip() or "NAME"
            raise BadInput(f"--machine {text}: how many devices of {name} there are is not said.", f"As {name}:8.")
        if not (count.isdecimal() and len(count) < 10 and int(count)):
            raise BadInput(f"--machine {text}: {count!r} is no number of devices.", f"As {name}:8.")
        found.append(FleetPart(machine.load(name), int(count)))
    limits.check_value(f"--machine {text:.60}: ranks", sum(part.ranks for part in found), limits.DEVICES)
    return tuple(found)


def check(some: tuple[FleetPart, ...]) -> None:
    """Raises `BadInput` for parts that no job can have together."""
    if len(some) > MOST:
        raise BadInput(
            f"{len(some)} parts stand in {factorial(len(some)):,} orders, and all would be tried: at most {MOST}.",
            "Leave some out, or plan for several trainings.",
        )
    for one in some:
        if one.machine.between is None:
            raise BadInput(
                f"{one.machine.name} names no link [between] nodes, and so none to the other parts.",
                "Add one to a TOML file of it.",
            )
    vendors = sorted({one.machine.device.vendor for one in some})
    if len(vendors) > 1:
        named = " and ".join(words.VENDORS[one].label for one in vendors)
        raise BadInput(
            f"devices of {named} have collective libraries that do not speak to each other.",
            "Plan for parts of one vendor.",
        )


def orders(some: tuple[FleetPart, ...]) -> list[tuple[int, ...]]:
    """In which the parts may stand, by their places; equal parts in one way only."""
    like = [some.index(one) for one in some]
    return list({tuple(like[at] for at in order): order for order in permutations(range(len(some)))}.values())


def widest(some: tuple[FleetPart, ...]) -> int:
    """The most ranks that a stage can have: all parts have whole stages of as many."""
    return gcd(*(one.ranks for one in some))


class PartModel(NamedTuple):
    """A part as the predictor sees it."""

    part: FleetPart
    hardware: RankHardware
    tuned: ConstantSet
    values: Constants

    @property
    def room(self) -> float:
        """Bytes of a device that can be had."""
        return float(self.hardware.memory[0]) * USABLE


def places(wanted: PlannerInput, parts: tuple[FleetPart, ...], framework: Framework) -> tuple[PartModel, ...]:
    """Raises `UnknownName` for a device without a peak in the dtype."""
    models = ((part, machine_model.of(part.machine, framework.software, wanted.dtype)) for part in parts)
    return tuple(PartModel(part, model.hardware, model.tuned, model.values) for part, model in models)
