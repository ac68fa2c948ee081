"""The largest cluster of a machine: one node (of a TPU, a pod) if its file has no link between nodes."""

from __future__ import annotations

from trainyard import limits
from trainyard.errors import BadJob
from trainyard.machine import Machine
from trainyard.units import counted


def max_ranks(machine: Machine) -> int:
    """Ranks of the largest cluster that can be planned on the machine."""
    return limits.DEVICES.most if machine.inter_node else machine.ranks_per_node


def check_ranks(machine: Machine, ranks: int) -> None:
    """Raises `BadJob` for more ranks than one node has, if there is no link between nodes."""
    if ranks <= max_ranks(machine):
        return
    devices = -(-ranks // machine.device.ranks)
    raise BadJob(
        f"{machine.name} has {counted(machine.per_node, 'device')} per node and no link between nodes ([inter_node]), "
        f"so {counted(devices, 'device')} are not connected.",
        f"Plan for at most {machine.per_node:,}, or add [inter_node] with its bandwidth per device and its latency to "
        "a copy of the machine's TOML file.",
    )
