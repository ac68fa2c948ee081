"""Times to move weights from the layout of training to that of generation, and tensors of training to the host.

These are times of ideal implementations: weights are converted to bfloat16 where they are, then gathered by all nodes
at the rate of their links, without repacking on the host.
"""

from __future__ import annotations

from trainyard.predict.inputs.cases import column
from trainyard.predict.inputs.machine_model import MachineModel
from trainyard.predict.post_training.decode_cost import VALUE_BYTES
from trainyard.predict.time import collective_time, offload


def transfer_seconds(machine: MachineModel, weights: float, ranks: int) -> float:
    """Seconds to all-gather `weights` weights over all `ranks` ranks of the cluster, those of training and of
    generation. An upper bound of the bytes on the links of a node: each rank keeps its own part only."""
    members = collective_time.group(machine.hardware, column(ranks), column(1), column(ranks))
    size_bytes = column(weights * VALUE_BYTES)
    return float(collective_time.gather(machine.hardware, machine.values, members, size_bytes)[0])


def copy_seconds(machine: MachineModel, size_bytes: float) -> float:
    """Seconds to copy `size_bytes` of each rank to its host or back."""
    return float(offload.copy_seconds(machine.hardware, machine.values, column(size_bytes))[0])
