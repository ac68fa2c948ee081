"""Variants of layouts with offloading to host memory, considered if requested or if nothing fits without.

A layout space is a table of layouts (axis -> value in each layout); a case is one of them as input of the cost model.
"""

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
    """Usable bytes per rank: of its device, and of its share of the host's memory."""

    device: float
    host: float


class LayoutSizes(NamedTuple):
    """Layouts with the bytes per rank that each needs: `device_bytes` on the device, `host_bytes` on the host."""

    layouts: LayoutSpace
    device_bytes: Column
    host_bytes: Column

    def fits(self, usable_memory: UsableMemory) -> Mask:
        """Mask of the layouts that fit on the device and on the host."""
        return (self.device_bytes <= usable_memory.device) & (self.host_bytes <= usable_memory.host)

    def keep(self, mask: Mask) -> LayoutSizes:
        return LayoutSizes(self.layouts.keep(mask), self.device_bytes[mask], self.host_bytes[mask])

    def joined(self, other: LayoutSizes) -> LayoutSizes:
        device_bytes, host_bytes = (np.concatenate(pair) for pair in zip(self[1:], other[1:], strict=True))
        return LayoutSizes(self.layouts.concat(other.layouts), device_bytes, host_bytes)


def usable_memory(machine: Machine) -> UsableMemory:
    """Usable bytes per rank: of its device, and of its share of the host's memory, less what frameworks and the system
    need."""
    host = machine.host.memory.value / machine.ranks_per_node if machine.host else 0.0
    return UsableMemory(machine.rank_memory * USABLE, host * offload.USABLE)


def check_host(machine: Machine) -> None:
    """Raises `BadJob` if the machine's host memory is unknown."""
    if machine.host is None:
        raise BadJob(
            f"{machine.name}: its file has no [host], so the host memory is unknown.",
            "Add [host] with memory, bandwidth and link to a copy of the file, and pass it as --machine FILE.",
        )


def size_layouts(wanted: PlannerInput, layouts: LayoutSpace, framework: Framework) -> LayoutSizes:
    """The bytes per rank that each layout needs, computed in pieces to bound the memory. On the device they include the
    overhead of the allocator (`RESERVED`)."""
    device_bytes, host_bytes = np.zeros((2, len(layouts)))
    first = 0
    for piece in layouts.pieces():
        cases, end = layout_space.as_cases(wanted, piece, framework.keeps), first + len(piece)
        device_bytes[first:end] = framework_memory.memory(cases).total * RESERVED
        host_bytes[first:end] = framework_memory.on_host(cases)
        first = end
    return LayoutSizes(layouts, device_bytes, host_bytes)


def add_offloaded(wanted: PlannerInput, layouts: LayoutSpace, framework: Framework, machine: Machine) -> LayoutSizes:
    """All layouts with the bytes they need, followed by their variants with offloading if nothing else fits: the cost
    model's constants were fitted to runs without offloading.

    If the axis `offload` is fixed in `wanted`, only the layouts with (1) or without (0). Raises `BadJob` if it is
    neither 0 nor 1, or if it is 1 and the host memory is unknown.
    """
    requested = wanted.fixed.get("offload")
    if requested not in (None, 0, 1):
        raise BadJob(f"offload = {requested} is neither 0 nor 1 (1 moves state to the host's memory).")
    can_offload = framework.offloads(wanted, layouts)
    if requested == 1:
        check_host(machine)
        return size_layouts(wanted, layouts.keep(can_offload).offloaded(), framework)
    in_device = size_layouts(wanted, layouts, framework)
    fits = bool(in_device.fits(usable_memory(machine)).any())
    if requested == 0 or machine.host is None or fits or not can_offload.any():
        return in_device
    return in_device.joined(size_layouts(wanted, layouts.keep(can_offload).offloaded(), framework))
