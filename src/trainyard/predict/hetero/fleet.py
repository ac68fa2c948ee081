"""A heterogeneous cluster: parts, each with a number of devices of one machine.

A rank is the share of a device that one process uses; a device has `machine.device.ranks` of them.
"""

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
from trainyard.predict.inputs.machine_model import ReferencePeak
from trainyard.predict.memory.framework_memory import USABLE
from trainyard.units import counted, is_whole_number

MAX_PARTS = 4
"""Largest number of parts of a cluster."""


class FleetPart(NamedTuple):
    machine: Machine
    devices: int

    def __str__(self) -> str:
        """`h100:64`: the machine's name and its number of devices, as `parse_parts` reads it."""
        return f"{self.machine.name}:{self.devices}"

    @property
    def ranks(self) -> int:
        return self.devices * self.machine.device.ranks

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.machine.per_node)


def parse_parts(text: str) -> tuple[FleetPart, ...]:
    """Parses `h100:64,mine.toml:128`: machines, by name or file, with their device counts. Raises `BadInput` for a
    missing or invalid count, equal machines or too many ranks, and the errors of `machine.load`."""
    parts: list[FleetPart] = []
    for entry in text.split(","):
        name, _, count = entry.strip().rpartition(":")
        if not name:
            name = entry.strip() or "NAME"
            raise BadInput(f"--machine {text}: no device count for {name}.", f"Add one, for example {name}:8.")
        if not (is_whole_number(count) and int(count)):
            raise BadInput(f"--machine {text}: {count!r} is not a device count.", f"Give a number, such as {name}:8.")
        parts.append(FleetPart(machine.load(name), int(count)))
    _check_distinct(text, parts)
    limits.check_value(f"--machine {text:.60}: ranks", sum(part.ranks for part in parts), limits.DEVICES)
    return tuple(parts)


def _check_distinct(text: str, parts: list[FleetPart]) -> None:
    """Raises `BadInput` if two of the parts of `--machine text` have the same machine, with the sum of their devices.
    They are one cluster, whose stages need not be on one of them."""
    merged: list[FleetPart] = []
    for part in parts:
        same = next((index for index, other in enumerate(merged) if other.machine == part.machine), None)
        if same is None:
            merged.append(part)
        else:
            merged[same] = part._replace(devices=merged[same].devices + part.devices)
    if len(merged) == len(parts):
        return
    first = merged[0]
    joined = ",".join(map(str, merged)) if len(merged) > 1 else f"{first.machine.name} --devices {first.devices}"
    raise BadInput(
        f"--machine {text}: {counted(len(parts), 'part')} of {counted(len(merged), 'kind')} of devices.",
        f"Join those of the same kind: --machine {joined}.",
    )


def check(parts: tuple[FleetPart, ...]) -> None:
    """Raises `BadInput` for parts that cannot run one job together: more than `MAX_PARTS`, without a network between
    nodes, or devices of different vendors."""
    if len(parts) > MAX_PARTS:
        raise BadInput(
            f"{len(parts)} parts have {factorial(len(parts)):,} orders, all of which are searched; at most {MAX_PARTS} "
            "parts are supported.",
            "Leave some out, or plan for several trainings.",
        )
    for part in parts:
        if part.machine.inter_node is None:
            raise BadInput(
                f"{part.machine.name} has no link between nodes ([inter_node]), and so none to the other parts.",
                "Add [inter_node] to a copy of its TOML file.",
            )
    vendors = sorted({part.machine.device.vendor for part in parts})
    if len(vendors) > 1:
        vendor_names = " and ".join(words.VENDORS[vendor].label for vendor in vendors)
        raise BadInput(
            f"the collective libraries of {vendor_names} devices are not compatible.",
            "Plan for parts of one vendor.",
        )


def orders(parts: tuple[FleetPart, ...]) -> list[tuple[int, ...]]:
    """All orders of the parts along the pipeline, as indices in `parts`. Permutations of equal parts count once."""
    index_of_equal = [parts.index(part) for part in parts]  # index of the first part that equals each
    order_of_key = {tuple(index_of_equal[index] for index in order): order for order in permutations(range(len(parts)))}
    return list(order_of_key.values())


def max_stage_ranks(parts: tuple[FleetPart, ...]) -> int:
    """Largest number of ranks per stage: every part must consist of whole stages of that size."""
    return gcd(*(part.ranks for part in parts))


class PartModel(NamedTuple):
    """A part with its performance model. `peak`: of one rank."""

    part: FleetPart
    hardware: RankHardware
    tuned: ConstantSet
    values: Constants
    peak: ReferencePeak

    @property
    def usable_memory(self) -> float:
        """Usable bytes of device memory per rank."""
        return float(self.hardware.memory[0]) * USABLE


def model_parts(wanted: PlannerInput, parts: tuple[FleetPart, ...], framework: Framework) -> tuple[PartModel, ...]:
    """The performance model of each part. Raises `UnknownName` for a device without a peak in the dtype."""
    models = ((part, machine_model.build(part.machine, framework.software, wanted.dtype)) for part in parts)
    return tuple(
        PartModel(part=part, hardware=model.hardware, tuned=model.tuned, values=model.values, peak=model.peak)
        for part, model in models
    )
