"""Sentences on the network that a plan assumes: links, a torus, levels of switches, and algorithms of collectives."""

from __future__ import annotations

from math import prod

from trainyard.machine import Machine, SwitchLevel, Torus
from trainyard.predict.inputs import hardware
from trainyard.predict.time import torus_time
from trainyard.units import counted


def describe_network(machine: Machine, ranks: int) -> list[str]:
    """Sentences on the torus in a node, the links and the levels of switches between nodes and the algorithms of
    collectives of a job of `ranks` ranks; none without them."""
    return [
        *_describe_torus(machine, ranks), *_describe_links(machine, ranks), *_describe_levels(machine, ranks),
        *_describe_algorithms(machine),
    ]  # fmt: skip


def _describe_links(machine: Machine, ranks: int) -> list[str]:
    """A sentence if the links between the nodes of a job are faster than those in a node, which is rare: devices on an
    older PCI Express than their network adapters, for example."""
    inside, between = machine.intra_node, machine.inter_node
    if not between or ranks <= machine.ranks_per_node or between.bandwidth.value <= inside.bandwidth.value:
        return []
    return [
        f"{between.name} between nodes has {between.bandwidth.value / 1e9:,.4g} GB/s per device, more than "
        f"{inside.name} in a node ({inside.bandwidth.value / 1e9:,.4g} GB/s). Check that both are of one device in one "
        "direction, in bytes and not in bits."
    ]


def _describe_algorithms(machine: Machine) -> list[str]:
    """A sentence on the algorithms, if there are more than rings and trees."""
    links = filter(None, (machine.intra_node, machine.inter_node))
    algorithms = [name.upper() for link in links for name in link.algorithms]
    if not algorithms:
        return []
    return [f"Collectives choose the fastest of ring, trees over nodes, {', '.join(algorithms)}; not calibrated."]


def _describe_torus(machine: Machine, ranks: int) -> list[str]:
    """A sentence on the torus, and on the part of it that the job has."""
    rank_torus = hardware.rank_torus(machine)
    if rank_torus is None or machine.intra_node.torus is None:
        return []
    sides, closed = torus_time.job_box(rank_torus, float(ranks))
    links = dict.fromkeys(f"{axis.bandwidth.value / 1e9:g} GB/s" for axis in machine.intra_node.torus.axes)
    job = ""
    if machine.intra_node.torus.slices:
        lines = [f"{side:g}" for side, is_closed in zip(sides, closed, strict=True) if side > 1 and not is_closed]
        shape = "x".join(f"{side:g}" for side in sides)
        slice_devices, devices = round(prod(sides)), ranks // machine.device.ranks
        held = shape
        if devices != slice_devices:
            held = f"{devices:,} of the {slice_devices:,} devices of {shape}, since no slice has {devices:,}"
        job = f" The job has {held}{', without rings on its sides of ' + ' and '.join(lines) if lines else ''}."
        job += _describe_rented(machine.intra_node.torus, devices)
    return [
        f"Network in a node: {machine.intra_node.name}, a {len(sides)}D torus of {machine.intra_node.torus.shape} with "
        f"links of {' and '.join(links)}; ranks fill it in their order, the first axis first.{job}"
    ]


def _describe_rented(torus: Torus, devices: int) -> str:
    """A sentence if no slice with so many devices can be rented, with the next numbers; empty if one can."""
    sizes = torus.rented_sizes
    if not sizes or devices in sizes:
        return ""
    fewer = max((size for size in sizes if size < devices), default=0)
    more = min((size for size in sizes if size > devices), default=0)
    nearest = " and ".join(f"{size:,}" for size in (fewer, more) if size)
    return f" No slice of {counted(devices, 'device')} can be rented; the next have {nearest}."


def _describe_levels(machine: Machine, ranks: int) -> list[str]:
    """A sentence on the levels of switches, and whether a job of `ranks` ranks uses them."""
    if not machine.fabric:
        return []
    leaf, devices = machine.fabric[0], ranks // machine.device.ranks
    if devices <= leaf.nodes * machine.per_node:
        return [
            f"{counted(devices, 'device')} fit in a pod of {leaf.nodes:,} nodes of {machine.per_node:,} devices: the "
            f"oversubscription ({leaf.oversubscription.value:g}:1) has no effect on this job."
        ]
    levels = [
        f"{_kind(level)} of {level.nodes} nodes at {level.oversubscription.value:g}:1 ({level.oversubscription.source})"
        for level in machine.fabric
    ]
    return [
        f"Network: {', '.join(levels)}. Predicted from the bytes on uplinks, with ranks placed in pods in their order "
        "and balanced uplinks; not calibrated."
    ]


def _kind(level: SwitchLevel) -> str:
    """The kind of a level of switches, in the plural."""
    if level.kind == "pod":
        return "pods"
    return f"rails {'with' if level.pxn else 'without'} PXN"
