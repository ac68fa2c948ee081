"""Which agents of a job see the same devices, and how they divide them.

Several agents can run on a single host: a job with `[recovery] nodes > 1` simulates nodes that way. Each agent numbers
its ranks from 0, so that without an offset rank 0 of every agent would use device 0.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard.launch.supervisor.messages import Member

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class DeviceShare(NamedTuple):
    """An agent's part of the devices of its host: it uses those from index `first`, and all agents of the host together
    need `ranks` devices."""

    first: int
    ranks: int


def device_host(environment: Mapping[str, str] = os.environ) -> str:
    """Return a text that is the same for two agents exactly if they see the same devices.

    Made of the host's name, the kernel's boot id, which distinguishes hosts of the same name, and the variables that
    select devices: agents that a scheduler gave different devices do not divide them. Overlapping selections that are
    not equal count as different devices.
    """
    try:
        boot = _BOOT_ID.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        boot = ""
    return " ".join([socket.gethostname(), boot, *(f"{name}={environment.get(name)}" for name in _VISIBLE)])


def device_share(members: Sequence[Member], member: Member, node_ranks: Callable[[int], int]) -> DeviceShare:
    """Return `member`'s first device, and the number of ranks of all agents that see the same devices.

    `members`: all agents of the generation, in rank order; `node_ranks`: returns the number of ranks of a node.
    An agent without a `device_host` is assumed to share its devices with no other agent.
    """
    sharing = [other for other in members if other == member or other.device_host == member.device_host != ""]
    ranks = [node_ranks(other.node) for other in sharing]
    return DeviceShare(first=sum(ranks[: sharing.index(member)]), ranks=sum(ranks))
