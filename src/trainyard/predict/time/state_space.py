"""The scan of a state space: its FLOPs and seconds on a rank, and its communication, as columns.

Mamba-2 scans in chunks (Dao and Gu 2024, arXiv:2405.21060, section 6): products of a chunk's tokens with each other, as
in attention; then each chunk's state, which is passed from chunk to chunk; and the output read from it. In Mamba-1
(`ssm_dt_rank` > 0) each channel has its own step size, so that matrix products cannot be used: states are updated token
by token in registers. A column has a value per case (layout), of shape [case].
"""

from __future__ import annotations

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import collective_time, shapes
from trainyard.predict.time.shapes import Product

_FLOAT32_BYTES = 4.0
_KERNELS_PER_LAYER = 8.0
_VECTOR_PEAK_RATIO = 1 / 16
"""float32 peak without matrix units over the 16-bit peak: A100 1/16, H100 1/15 (data sheets)."""
_FLOPS_PER_STATE_ELEMENT = 6.0
"""FLOPs per token and state element: decay, input and output, a multiplication and an addition each."""
_STATE_PASSES = 4.0
"""Times that a chunk's float32 state is moved: written, passed on (read and written), read."""
_CONVOLUTION_PASSES = 2.0
"""Times that a convolved channel is moved: in and out."""
_GATED_NORM_PASSES = 4.0
"""Times that the gated norm moves an inner channel: the gate, its operand, their product, and that into the norm."""
_BACKWARD_RATIO = 3.0
"""Backward time over forward time: two products for one, and recomputation (mamba_ssm's fused kernels)."""


def recurrence_flops(cases: Cases) -> Column:
    """FLOPs of the recurrence in a layer's forward pass of a micro-batch on a rank, whatever the algorithm."""
    return _FLOPS_PER_STATE_ELEMENT * cases.tokens * _inner_channels(cases) / cases.tp * cases.ssm_state_size


def products(cases: Cases) -> list[Product]:
    """Matrix products of the chunked scan of a micro-batch on a rank; of size 0 in Mamba-1."""
    length = np.maximum(cases.ssm_chunk_size, 1.0)
    chunks = np.where(cases.ssm_dt_rank > 0, 0.0, cases.tokens / length / cases.tp)
    heads, groups = chunks * cases.ssm_heads, chunks * cases.ssm_groups  # of all chunks together
    dim, state = cases.ssm_head_dim, cases.ssm_state_size
    return [
        Product(length, length, state, groups),  # scores of a chunk's tokens with each other
        Product(length, dim, length, heads),  # output from them
        Product(state, dim, length, heads),  # the chunk's state
        Product(length, dim, state, heads),  # output from the state of the chunks before
    ]


def scan(cases: Cases, hardware: RankHardware, tuned: Constants) -> tuple[Column, Column]:
    """(forward, backward) seconds of a layer's convolution, scan, gate and inner norm, for a micro-batch on a rank."""
    mamba1 = cases.ssm_dt_rank > 0
    chunk_s = sum((matmul.flops for matmul in products(cases)), np.zeros(1)) / hardware.peak
    token_s = np.where(mamba1, recurrence_flops(cases) / (hardware.peak * _VECTOR_PEAK_RATIO), 0.0)
    state_elements = (
        cases.tokens / np.maximum(cases.ssm_chunk_size, 1.0) * _inner_channels(cases) * cases.ssm_state_size / cases.tp
    )
    state_bytes = np.where(mamba1, 0.0, _STATE_PASSES * _FLOAT32_BYTES * state_elements)
    moved_values = (
        cases.tokens
        / cases.tp
        * (_CONVOLUTION_PASSES * shapes.convolution_channels(cases) + _GATED_NORM_PASSES * _inner_channels(cases))
    )
    traffic_s = (state_bytes + moved_values * cases.width_bytes) / hardware.bandwidth
    seconds = np.where(
        cases.space_layers > 0, tuned.scan * (chunk_s + token_s + traffic_s) + _KERNELS_PER_LAYER * tuned.kernel_s, 0.0
    )
    return seconds, _BACKWARD_RATIO * seconds


def context_exchange_seconds(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """Seconds of context parallelism: all-to-alls from a part of the tokens with all heads to all tokens with a part of
    the heads, and back with the results."""
    # Channels that go in: the gate, the convolved channels and the step sizes; the scan's output comes back.
    channels = _inner_channels(cases) + shapes.convolution_channels(cases) + cases.ssm_heads
    ranks = collective_time.context(cases, hardware)
    size_bytes = cases.tokens * (channels + _inner_channels(cases)) / cases.tp * cases.width_bytes
    return collective_time.exchange(hardware, tuned, ranks, size_bytes)


def activations(cases: Cases) -> Column:
    """Values of a micro-batch that a layer keeps, without its input and the norm of that: the output of its first
    product, the output of the scan and the input of its last product; the rest is recomputed (mamba_ssm,
    ssd_combined.py). Mamba-1 also keeps the inputs of the scan."""
    inner, convolved = _inner_channels(cases), shapes.convolution_channels(cases)
    step_channels = np.where(
        cases.ssm_dt_rank > 0, 2 * inner + cases.ssm_dt_rank + 2 * cases.ssm_state_size, cases.ssm_heads
    )
    return cases.tokens / cases.tp * (inner + convolved + step_channels + 2 * inner)


def _inner_channels(cases: Cases) -> Column:
    return cases.ssm_heads * cases.ssm_head_dim
