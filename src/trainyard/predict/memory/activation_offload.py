"""Activations that are in the host's memory between the forward and the backward pass of their layer, as columns.

The copies of a layer run during the compute of others: its activations leave the device while the next layer computes,
and return while the layer after it does, so that two layers are on the device at a time (Transformer Engine,
`pytorch/cpu_offload.py`, which divides the copies evenly over the passes of all layers). A column has a value per case
(layout), of shape [case].
"""

from __future__ import annotations

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.memory.layer_memory import measure_layer
from trainyard.predict.time import shapes

BUFFERED_LAYERS = 2
"""Offloaded layers whose activations are on the device at a time: one that is copied, one that computes."""


def layer_bytes(cases: Cases) -> Column:
    """Bytes of a micro-batch that are copied in each direction, mean over all layers of the model."""
    if not (cases.offloaded_layers > 0).any():
        return np.zeros(1)
    dense, routed = (kind / cases.layers for kind in shapes.layer_kinds(cases))
    kept_bytes = measure_layer(cases).kept.of_layers(np.ones(1), dense, routed)
    return kept_bytes * cases.offloaded_layers / cases.layers


def device_bytes(cases: Cases, kept_bytes: Column) -> Column:
    """Bytes of `kept_bytes`, the activations that all layers keep for a micro-batch, that are on the device at its
    peak."""
    remaining_layers = np.minimum(cases.layers, cases.layers - cases.offloaded_layers + BUFFERED_LAYERS)
    return np.where(cases.offloaded_layers > 0, kept_bytes * remaining_layers / cases.layers, kept_bytes)


def host_bytes(cases: Cases) -> Column:
    """Bytes of a micro-batch in the host's memory, of all layers of the model."""
    return cases.layers * layer_bytes(cases)
