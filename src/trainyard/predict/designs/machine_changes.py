"""Changes of a machine, each by a factor that improves it if it is above 1.

The changed machine keeps its name, its price, and the fitted constants of the unchanged one except those that are
changed: the attained shares of the peaks, and of the bandwidths, stay the same. Each changed claim names the factor and
its former source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, floor
from typing import NamedTuple

from msgspec.structs import replace

from trainyard.errors import BadInput, UnknownName, nearest
from trainyard.machine import Claim, Link, Machine, RateCurve, Torus
from trainyard.predict.inputs import constant_sets
from trainyard.predict.inputs.constants import HOST_S, Constants

_HOP_S = ("intra_node_s", "inter_node_s")
"""Constants: seconds of a hop, which the cost model uses in place of the latencies of the machine file."""
_LEAST_FACTOR, _MOST_FACTOR = 0.01, 100.0
_SHORTEST_RING = 3
"""Devices of the shortest axis of a torus on which each has two links."""


class MachineChange(NamedTuple):
    """A change of a machine by a factor. `label`: the change in words, with `{}` for the factor. `apply`: returns the
    changed copy of a machine whose constants are its own (`with_own_constants`)."""

    label: str
    apply: Callable[[Machine, float], Machine]

    def describe(self, factor: float) -> str:
        """`2 x memory bandwidth`, `latency / 2`."""
        return self.label.format(f"{factor:g}")


def with_own_constants(machine: Machine, software: str) -> Machine:
    """The machine with the fitted constants of `software` (`ConstantSet.software`) as its own, so that single ones can
    be changed. Predicted steps stay the same."""
    tuned = constant_sets.choose(machine, software)
    return replace(machine, calibration=dict(zip(Constants._fields, tuned.claims, strict=True)))


def improve_machine(machine: Machine, factors: Mapping[str, float]) -> Machine:
    """The machine with several changes: name in `CHANGES` -> factor. `machine`: with its own constants. Raises
    `BadInput` as `check_change`, and for a number that no hardware has."""
    for name, factor in factors.items():
        check_change(machine, name, factor)
        machine = CHANGES[name].apply(machine, factor)
    return machine


def check_change(machine: Machine, name: str, factor: float) -> None:
    """Raises `UnknownName` for an unknown change, `BadInput` for a factor out of range, a part that the machine does
    not have, or a node that would not have a whole number of devices."""
    if name not in CHANGES:
        raise UnknownName(f"there is no change {name!r} of a machine.", nearest(name, CHANGES))
    if not _LEAST_FACTOR <= factor <= _MOST_FACTOR:
        raise BadInput(
            f"the factor {factor:g} of {name} is not between {_LEAST_FACTOR:g} and {_MOST_FACTOR:g}.",
            f"Pass how many times better the machine is, as --change {name}=2.",
        )
    if not is_applicable(machine, name):
        raise BadInput(
            f"{machine.name} has no link between nodes, so {name} cannot be changed.",
            f"Leave out --change {name}.",
        )
    devices = machine.per_node * factor
    if name == "node-size" and devices % 1:
        counts = {floor(devices), ceil(devices), machine.per_node + 1} - {0, machine.per_node}
        nearest_devices = min(counts, key=lambda count: abs(count - devices))
        raise BadInput(
            f"{factor:g} x {machine.per_node} devices per node is {devices:g}, not a whole number.",
            f"Use --change node-size={nearest_devices / machine.per_node}.",
        )


def is_applicable(machine: Machine, name: str) -> bool:
    """Whether the machine has the part that the change concerns."""
    return name != "inter-node" or machine.inter_node is not None


def _scale(claim: Claim, factor: float) -> Claim:
    """The claim times `factor`, as a hypothetical number."""
    source = f"hypothetical: {factor:g} x {claim.source}"
    return replace(claim, value=claim.value * factor, source=source, measured=False)


def _scale_curves(curves: Mapping[str, RateCurve], factor: float) -> dict[str, RateCurve]:
    """The measured rates by size, times `factor`."""
    return {
        name: RateCurve(
            points=tuple((size, rate * factor) for size, rate in curve.points), claim=_scale(curve.claim, factor)
        )
        for name, curve in curves.items()
    }


def _scale_matmul(machine: Machine, factor: float) -> Machine:
    """All peaks, and the rates that were achieved and sustained."""
    device = machine.device
    peak, sustained = (
        {dtype: _scale(claim, factor) for dtype, claim in rates.items()} for rates in (device.peak, device.sustained)
    )
    achieved = _scale_curves(device.achieved, factor)
    return replace(machine, device=replace(device, peak=peak, sustained=sustained, achieved=achieved))


def _scale_memory_bandwidth(machine: Machine, factor: float) -> Machine:
    return replace(machine, device=replace(machine.device, bandwidth=_scale(machine.device.bandwidth, factor)))


def _scale_memory_capacity(machine: Machine, factor: float) -> Machine:
    return replace(machine, device=replace(machine.device, memory=_scale(machine.device.memory, factor)))


def _scale_link(link: Link, factor: float) -> Link:
    """The link with all of its bandwidths times `factor`; its latency stays."""
    return replace(
        link,
        bandwidth=_scale(link.bandwidth, factor),
        peer_bandwidth=_scale(link.peer_bandwidth, factor) if link.peer_bandwidth else None,
        torus=_scale_torus(link.torus, factor) if link.torus else None,
        achieved=_scale_curves(link.achieved, factor),
    )


def _scale_torus(torus: Torus, factor: float) -> Torus:
    """The torus with the bandwidth of each link times `factor`."""
    axes = (replace(axis, bandwidth=_scale(axis.bandwidth, factor)) for axis in torus.axes)
    return replace(torus, axes=tuple(axes))


def _scale_intra_node(machine: Machine, factor: float) -> Machine:
    return replace(machine, intra_node=_scale_link(machine.intra_node, factor))


def _scale_inter_node(machine: Machine, factor: float) -> Machine:
    link = machine.inter_node
    return replace(machine, inter_node=_scale_link(link, factor) if link else None)


def _divide_constants(machine: Machine, names: tuple[str, ...], factor: float) -> Machine:
    """The machine with these constants of its own, in seconds, divided by `factor`."""
    changed = {name: _scale(machine.calibration[name], 1 / factor) for name in names}
    return replace(machine, calibration=machine.calibration | changed)


def _divide_latency(machine: Machine, factor: float) -> Machine:
    """The latencies of both links and of the levels of switches, and the seconds of a hop."""
    inside, between = machine.intra_node, machine.inter_node
    levels = (
        replace(level, latency=_scale(level.latency, 1 / factor) if level.latency else None) for level in machine.fabric
    )
    shorter = replace(
        machine,
        intra_node=replace(inside, latency=_scale(inside.latency, 1 / factor)),
        inter_node=replace(between, latency=_scale(between.latency, 1 / factor)) if between else None,
        fabric=tuple(levels),
    )
    return _divide_constants(shorter, _HOP_S, factor)


def _divide_host_time(machine: Machine, factor: float) -> Machine:
    return _divide_constants(machine, HOST_S, factor)


def _scale_node(machine: Machine, factor: float) -> Machine:
    """More devices on the fast links of a node; each device keeps its share of the host's memory and bandwidth."""
    host = machine.host
    if host:
        host = replace(host, memory=_scale(host.memory, factor), bandwidth=_scale(host.bandwidth, factor))
    link = machine.intra_node
    if link.torus:
        link = replace(link, torus=_lengthen(link.torus, factor))
    return replace(machine, per_node=round(machine.per_node * factor), per_host=0, host=host, intra_node=link)


def _lengthen(torus: Torus, factor: float) -> Torus:
    """The torus with `factor` times as many devices on its shortest axis for which that is a whole number of cubes, or
    of devices. Raises `BadInput` without such an axis."""
    unit = max(torus.cube, 1)
    for index, axis in sorted(enumerate(torus.axes), key=lambda item: item[1].size):
        size = axis.size * factor
        if size % unit == 0 and size >= _SHORTEST_RING:
            longer = replace(axis, size=int(size))
            return replace(torus, axes=(*torus.axes[:index], longer, *torus.axes[index + 1 :]))
    raise BadInput(
        f"no axis of a torus of {torus.shape} can have {factor:g} times as many devices.",
        "Use --change node-size=2 or another whole factor.",
    )


CHANGES: Mapping[str, MachineChange] = {
    "matmul": MachineChange("{} x matmul rate", _scale_matmul),
    "memory-bandwidth": MachineChange("{} x memory bandwidth", _scale_memory_bandwidth),
    "memory-capacity": MachineChange("{} x memory capacity", _scale_memory_capacity),
    "intra-node": MachineChange("{} x links in a node", _scale_intra_node),
    "inter-node": MachineChange("{} x links between nodes", _scale_inter_node),
    "node-size": MachineChange("{} x devices per node", _scale_node),
    "latency": MachineChange("link latency / {}", _divide_latency),
    "host-time": MachineChange("host time / {}", _divide_host_time),
}
"""Name -> change. Elementwise operations have no rate of their own: the cost model predicts them by their memory
traffic."""
