"""Where cases would run, as columns: a machine's claims, one number each."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from trainyard.errors import UnknownName, nearest
from trainyard.machine import Machine
from trainyard.predict.cases import Column, column


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """`peak`, `low_peak`: FLOP/s in the compute dtype and, of the products of layers, where they run below that.
    `memory`: bytes; `bandwidth`: bytes/s of it. `inside`, `between`: bytes/s a device and direction, in a node and
    to other nodes; `peer`: in a node to one other device. `per_node`: devices. `host`: 1 where the device is the host's
    own cores, which then do nothing else while they launch."""

    peak: Column
    low_peak: Column
    memory: Column
    bandwidth: Column
    inside: Column
    peer: Column
    between: Column
    per_node: Column
    host: Column

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Site:
        size = max(np.size(getattr(self, field.name)) for field in fields(self))
        return replace(
            self, **{field.name: np.broadcast_to(getattr(self, field.name), size)[rows] for field in fields(self)}
        )


def _peak(machine: Machine, dtype: str) -> float:
    peaks = machine.device.peak
    if dtype not in peaks:
        raise UnknownName(f"{machine.device.name} claims no peak for {dtype}.", nearest(dtype, peaks))
    return peaks[dtype].value


def of_machine(machine: Machine, dtype: str, low: str = "") -> Site:
    """`low`: in what the products of layers run, where not in `dtype`. Raises `UnknownName` without a peak for one."""
    between = machine.between or machine.inside
    return Site(
        peak=column(_peak(machine, dtype)),
        low_peak=column(_peak(machine, low or dtype)),
        memory=column(machine.device.memory.value),
        bandwidth=column(machine.device.bandwidth.value),
        inside=column(machine.inside.bandwidth.value),
        peer=column((machine.inside.peer or machine.inside.bandwidth).value),
        between=column(between.bandwidth.value),
        per_node=column(machine.per_node),
        host=column(machine.device.vendor == "cpu"),
    )
