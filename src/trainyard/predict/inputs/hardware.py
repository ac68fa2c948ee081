"""Where cases would run, as columns: a machine's claims, one number each."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from trainyard.errors import UnknownName, nearest
from trainyard.machine import Machine
from trainyard.predict.inputs.cases import Column, column


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Of one rank. `peak`, `low_peak`: FLOP/s in the compute dtype and, of the products of layers, where they run below
    that. `memory`: bytes; `bandwidth`: bytes/s of it. `inside`, `between`: bytes/s in a direction, in a node and to
    other nodes; `peer`: in a node to one other rank. `per_node`: ranks. `host`: 1 where the device is the host's own
    cores, which then do nothing else while they launch.

    A rank's part of its node's host: `host_memory`: bytes, 0 where they are not known; `host_bandwidth`: bytes/s of it;
    `host_link`: bytes/s in a direction between it and the device, `host_link_s`: seconds until the first arrives."""

    peak: Column
    low_peak: Column
    memory: Column
    bandwidth: Column
    inside: Column
    peer: Column
    between: Column
    per_node: Column
    host: Column
    host_memory: Column
    host_bandwidth: Column
    host_link: Column
    host_link_s: Column

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
    between, part = machine.between or machine.inside, 1 / machine.device.ranks
    host, ranks = machine.host, machine.ranks_per_node
    return Site(
        peak=column(_peak(machine, dtype) * part),
        low_peak=column(_peak(machine, low or dtype) * part),
        memory=column(machine.rank_memory),
        bandwidth=column(machine.device.bandwidth.value * part),
        inside=column(machine.inside.bandwidth.value * part),
        peer=column((machine.inside.peer or machine.inside.bandwidth).value * part),
        between=column(between.bandwidth.value * part),
        per_node=column(machine.ranks_per_node),
        host=column(machine.device.vendor == "cpu"),
        host_memory=column(host.memory.value / ranks if host else 0.0),
        host_bandwidth=column(host.bandwidth.value / ranks if host else np.inf),
        host_link=column(host.link.bandwidth.value * part if host else np.inf),
        host_link_s=column(host.link.latency.value if host else 0.0),
    )
