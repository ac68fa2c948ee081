"""Arguments of `plan` that describe the switches between nodes, in place of those of the machine file."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from trainyard import machine_checks
from trainyard.errors import BadInput
from trainyard.machine import Claim, Machine, SwitchLevel


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """One level of switches between nodes, for `plan` and `check_plan`; None for the network of the machine file.

    `oversubscription`: bandwidth of the links from the nodes into the switches of a pod, over that of their uplinks: 4
    for 4:1. `pod_nodes`: nodes of a pod, which are the nodes below one switch, or below one switch for each device of a
    node in a rail-optimised network."""

    oversubscription: float | None = None
    pod_nodes: int | None = None


def with_fabric(machine: Machine, options: Fabric) -> Machine:
    """The machine with the network of `options`, or as it is without them. Raises `BadInput` for one option without the
    other, a ratio below 1, a pod of one node, or a machine without a link between nodes."""
    ratio, nodes = options.oversubscription, options.pod_nodes
    if ratio is None and nodes is None:
        return machine
    if ratio is None or nodes is None:
        if nodes is None:
            raise BadInput(
                f"--oversubscription {ratio:g} needs the size of a pod.",
                "Pass --pod-nodes: the nodes below one switch or group of switches.",
            )
        raise BadInput(
            f"--pod-nodes {nodes} needs the ratio of a pod's downlinks to its uplinks.",
            "Pass --oversubscription: 4 for 4:1.",
        )
    if machine.inter_node is None:
        raise BadInput(
            f"--oversubscription {ratio:g} describes the switches between nodes, but {machine.name} has no link "
            "between nodes ([inter_node]).",
            "Leave out --oversubscription and --pod-nodes.",
        )
    claim = Claim(value=ratio, unit="ratio", source="--oversubscription")
    level = SwitchLevel(name="pod", nodes=nodes, oversubscription=claim)
    changed = replace(machine, fabric=(level,))
    machine_checks.check_machine(changed)
    return changed


def refuse_for_parts(options: Fabric, machines: str) -> None:
    """Raises `BadInput` if options describe the network of `machines`, several kinds of devices."""
    if options != Fabric():
        raise BadInput(
            f"--oversubscription and --pod-nodes describe one network, but --machine {machines} has several.",
            "Describe the switches of each in its machine file ([[fabric]]).",
        )
