"""What waits in the host's memory: how long it is on its way, and its update there, as columns.

The optimizer's state alone, which is then updated by the host (Ren et al. 2021, arXiv:2101.06840, section 4): gradients
go down and new weights come up once a step. Or weights and gradients too (torch's CPUOffloadPolicy): a layer's part
comes up whenever it is gathered, and its gradients go down whenever they were scattered.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware

Kind = Literal["", "state", "all"]
KINDS: tuple[Kind, ...] = ("", "state", "all")
"""A case's `offload` is the place of its word here."""
USABLE = 0.9
"""Of a host's memory: the rest is the system's, the data's and the programs' own."""


def copied(hardware: RankHardware, tuned: Constants, size: Column) -> Column:
    """Seconds of a copy between a device and its host in one direction, while the node's other devices do the same."""
    return size / np.minimum(hardware.host_link, hardware.host_bandwidth) / tuned.host_link + hardware.host_link_s


def update(cases: Cases, hardware: RankHardware, tuned: Constants, weights: Column) -> Column:
    """Seconds that a host takes to update so many weights of each of its ranks: state, and weights where they are
    there, are read and written, gradients read, and weights for the device written. It is no faster than a device."""
    there = np.where(cases.offload > 1, 2.0, 1.0) * cases.weight_bytes
    moved = 2 * cases.state_bytes + cases.gradient_bytes + there
    return weights * np.maximum(
        moved / (hardware.host_bandwidth * tuned.host_update), tuned.optimizer / (hardware.bandwidth * tuned.bandwidth)
    )


def a_weight(cases: Cases) -> Column:
    """Bytes in the host's memory of a weight whose state is there: where gradients are not kept there they are copied
    there, and weights on their way up too."""
    return np.where(cases.offload > 0, cases.state_bytes + cases.gradient_bytes + cases.weight_bytes, 0.0)
