"""Offloading to the host's memory: copy and update times, and bytes, as columns.

"state": only the optimizer's state is offloaded, and the host updates it (Ren et al. 2021, arXiv:2101.06840,
section 4): gradients are copied to the host and new weights to the device once per step. "all": weights and gradients
too (torch's CPUOffloadPolicy): a layer's shard is copied to the device before each all-gather, and its gradients to the
host after each reduce-scatter.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware

Kind = Literal["", "state", "all"]
KINDS: tuple[Kind, ...] = ("", "state", "all")
"""A case's `offload` is an index into this tuple."""
ALL = KINDS.index("all")
USABLE = 0.9
"""Fraction of a host's memory that can be used: the rest is for the system, the data and the programs."""


def copy_seconds(hardware: RankHardware, tuned: Constants, size_bytes: Column) -> Column:
    """Seconds of a copy of `size_bytes` between a device and its host in one direction, while the node's other devices
    do the same."""
    return size_bytes / np.minimum(hardware.host_link, hardware.host_bandwidth) / tuned.host_link + hardware.host_link_s


def update_seconds(cases: Cases, hardware: RankHardware, tuned: Constants, weight_count: Column) -> Column:
    """Seconds of the optimizer update on the host, of `weight_count` parameters for each of its ranks: it reads and
    writes the state (and the weights, if offloaded), reads gradients and writes weights for the device. Never less than
    the device's time."""
    # Offloaded weights are read and written; otherwise the new weights are only written, for the device.
    weight_bytes = np.where(cases.offload == ALL, 2.0, 1.0) * cases.weight_bytes
    bytes_per_weight = 2 * cases.state_bytes + cases.gradient_bytes + weight_bytes
    return weight_count * np.maximum(
        bytes_per_weight / (hardware.host_bandwidth * tuned.host_update),
        tuned.optimizer / (hardware.bandwidth * tuned.bandwidth),
    )


def host_bytes_per_weight(cases: Cases) -> Column:
    """Bytes of host memory per weight with offloaded state, including its gradient and its weight: both are kept there
    or pass through a buffer there."""
    return np.where(cases.offload > 0, cases.state_bytes + cases.gradient_bytes + cases.weight_bytes, 0.0)
