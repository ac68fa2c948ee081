"""The scan of a state space: what it computes on a rank, how long it takes and what ranks exchange for it, as columns.

In chunks (Dao and Gu 2024, arXiv:2405.21060, section 6): products of the tokens of a chunk with each other, as
attention has them, then each chunk's state, handed on from chunk to chunk, and what is read from it. Where each
channel has a step of its own (Mamba) no product does it: states are updated one token after the other in registers.
"""

from __future__ import annotations

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import collective_time, shapes
from trainyard.predict.time.shapes import Product

_FLOAT32 = 4.0
_KERNELS = 8.0
_VECTORS = 1 / 16
"""Of a device's peak in 16 bits, that it has in float32 without matrix units: A100 1/16, H100 1/15 (data sheets)."""
_UPDATE = 6.0
"""FLOPs a token and number of a state: it decays, takes in and is read, a multiplication and an addition each."""
_PASSES = 4.0
"""Times a chunk's float32 state is moved: made, handed on (read and written), read."""
_MOVED = 2.0
"""Times a convolved channel is moved: in and out."""
_GATED = 4.0
"""Times an inner channel is moved by the gated norm: the gate, what it gates, the result, and that into the norm."""
_BACKWARD = 3.0
"""Times as long backward: two products for one, and what was not kept is computed again (mamba_ssm's fused kernels)."""


def needed(cases: Cases) -> Column:
    """FLOPs of a micro-batch's forward pass in one layer on a rank: what the recurrence takes, however it is done."""
    return _UPDATE * cases.tokens * _inner(cases) / cases.tp * cases.state


def products(cases: Cases) -> list[Product]:
    """Those of the chunks; empty where channels have steps of their own."""
    length = np.maximum(cases.chunk, 1.0)
    chunks = np.where(cases.step_rank > 0, 0.0, cases.tokens / length / cases.tp)
    heads, groups, dim, state = chunks * cases.space_heads, chunks * cases.space_groups, cases.space_dim, cases.state
    return [
        Product(length, length, state, groups),
        Product(length, dim, length, heads),
        Product(state, dim, length, heads),
        Product(length, dim, state, heads),
    ]


def scan(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Column, Column]:
    """Seconds of a layer's convolution, scan, gate and norm inside, forward and backward."""
    alone = cases.step_rank > 0
    by_chunk = sum((one.flops for one in products(cases)), np.zeros(1)) / hardware.peak
    by_token = np.where(alone, needed(cases) / (hardware.peak * _VECTORS), 0.0)
    states = cases.tokens / np.maximum(cases.chunk, 1.0) * _inner(cases) * cases.state / cases.tp
    kept = np.where(alone, 0.0, _PASSES * _FLOAT32 * states)
    widths = cases.tokens / cases.tp * (_MOVED * shapes.convolved(cases) + _GATED * _inner(cases))
    moved = (kept + widths * cases.width_bytes) / hardware.bandwidth
    seconds = np.where(cases.spaces > 0, tuned.scan * (by_chunk + by_token + moved) + _KERNELS * tuned.kernel_s, 0.0)
    return seconds, _BACKWARD * seconds


def exchanged(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Seconds of context parallelism: from a part of the tokens with all heads to all tokens with a part of the heads,
    and back with what came of them."""
    channels = _inner(cases) + shapes.convolved(cases) + cases.space_heads
    who = collective_time.context(cases, hardware)
    both = cases.tokens * (channels + _inner(cases)) / cases.tp * cases.width_bytes
    return collective_time.exchange(hardware, tuned, who, both)


def activations(cases: Cases) -> Column:
    """Values that a layer keeps of a micro-batch beside its input and the norm of that: what its first product makes,
    what the scan gives, and what its last product takes; the rest is computed again (mamba_ssm, ssd_combined.py). Where
    channels have steps of their own, what goes into each scan is kept too."""
    inner, beside = _inner(cases), shapes.convolved(cases)
    steps = np.where(cases.step_rank > 0, 2 * inner + cases.step_rank + 2 * cases.state, cases.space_heads)
    return cases.tokens / cases.tp * (inner + beside + steps + 2 * inner)


def _inner(cases: Cases) -> Column:
    return cases.space_heads * cases.space_dim
