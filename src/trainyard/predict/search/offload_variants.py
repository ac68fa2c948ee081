"""Layouts again, with what waits in the host's memory: where none fits otherwise, or that was asked for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadJob
from trainyard.machine import Machine
from trainyard.predict.inputs import layout_space
from trainyard.predict.inputs.cases import Column
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import LayoutSpace, PlannerInput
from trainyard.predict.memory import framework_memory
from trainyard.predict.memory.framework_memory import RESERVED, USABLE
from trainyard.predict.time import offload

Mask = npt.NDArray[np.bool_]


class UsableMemory(NamedTuple):
    """Bytes that can be had: of a rank's device, of its part of a node's host."""

    device: float
    host: float


class LayoutSizes(NamedTuple):
    """Layouts, and what each needs: bytes of a device, and of the host for one rank."""

    every: LayoutSpace
    need: Column
    waiting: Column

    def fits(self, room: UsableMemory) -> Mask:
        return (self.need <= room.device) & (self.waiting <= room.host)

    def keep(self, mask: Mask) -> LayoutSizes:
        return LayoutSizes(self.every.keep(mask), self.need[mask], self.waiting[mask])

    def beside(self, other: LayoutSizes) -> LayoutSizes:
        needs, waits = (np.concatenate(pair) for pair in zip(self[1:], other[1:], strict=True))
        return LayoutSizes(self.every.concat(other.every), needs, waits)


def room(machine: Machine) -> UsableMemory:
    host = machine.host.memory.value / machine.ranks_per_node if machine.host else 0.0
    return UsableMemory(machine.rank_memory * USABLE, host * offload.USABLE)


def check(machine: Machine) -> None:
    """Raises `BadJob` where what waits in the host's memory cannot be planned for."""
    if machine.host is None:
        raise BadJob(
            f"{machine.name}: its file has no [host], so the memory of its hosts is unknown.",
            "Copy its file, add [host] with memory, bandwidth and link, and name that: --machine FILE.",
        )


def sized(wanted: PlannerInput, every: LayoutSpace, framework: Framework) -> LayoutSizes:
    need, waiting = np.zeros((2, len(every)))
    start = 0
    for some in every.pieces():
        made, stop = layout_space.as_cases(wanted, some, framework.keeps), start + len(some)
        need[start:stop], waiting[start:stop] = (
            framework_memory.memory(made).total * RESERVED,
            framework_memory.on_host(made),
        )
        start = stop
    return LayoutSizes(every, need, waiting)


def both(wanted: PlannerInput, every: LayoutSpace, framework: Framework, machine: Machine) -> LayoutSizes:
    """`every` layout, and behind them, where none of it fits, the twins. Where `offload` is fixed, only those or none
    are there: no step with something on a host was measured for the constants, so what fits without comes first. Raises
    `BadJob` where none is."""
    asked = wanted.fixed.get("offload")
    if asked not in (None, 0, 1):
        raise BadJob(f"offload = {asked} is neither 0 nor 1 (1 moves state to the host's memory).")
    mask = framework.offloads(wanted, every)
    if asked == 1:
        check(machine)
        if not mask.any():
            raise BadJob(
                f"{framework.means} keeps nothing in the host's memory in any of {len(every):,} layouts that divide "
                "everything.",
                "Leave out what is fixed, or --fix offload=1.",
            )
        return sized(wanted, every.keep(mask).offloaded(), framework)
    plain = sized(wanted, every, framework)
    enough = bool(plain.fits(room(machine)).any())
    if asked == 0 or machine.host is None or enough or not mask.any():
        return plain
    return plain.beside(sized(wanted, every.keep(mask).offloaded(), framework))


def any_fits(wanted: PlannerInput, every: LayoutSpace, framework: Framework, machine: Machine) -> bool:
    try:
        return bool(both(wanted, every, framework, machine).fits(room(machine)).any())
    except BadJob:
        return False
