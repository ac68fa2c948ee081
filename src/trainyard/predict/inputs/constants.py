"""Constants of a device, a fabric and their software that the planner needs in addition to their peaks.

They are fitted to measurements (`validation/fit.py`), and stored in data/constants/*.toml as claims. The defaults here
apply without measurements: about the geometric mean over measured devices and software.
"""

from __future__ import annotations

from typing import NamedTuple

SHARES = frozenset(
    (
        "matmul",
        "low_matmul",
        "grouped",
        "low_grouped",
        "attention",
        "bandwidth",
        "intra_node",
        "inter_node",
        "overlap",
        "dispatch",
        "dispatch_units",
        "host_link",
        "host_update",
    )
)
"""Constants that are at most 1."""
AT_LEAST_ONE = frozenset(("adapted",))
"""Constants that are at least 1."""
HOST_S = (
    "kernel_s", "host_forward_s", "host_backward_s", "host_experts_s", "host_collective_s", "host_plain_s",
    "microbatch_s", "step_s",
)  # fmt: skip
"""Constants: seconds of the host and of launches, in a step, a micro-batch, a layer, a collective or a kernel."""


class Constants(NamedTuple):
    """Shares are fractions of the rates in the machine file; names in `_s` are seconds. All are positive.

    A product of (m x k) by (k x n) reaches matmul / ((1 + rows/m) (1 + columns/n) (1 + depth/k)) of the peak.
    """

    matmul: float = 0.72
    rows: float = 130.0
    columns: float = 60.0
    depth: float = 120.0
    low_matmul: float = 0.75
    """Like `matmul`, below 16 bits, including the time to round."""
    grouped: float = 0.8
    """Share of `matmul` that grouped products of several experts attain, assumed: with many tokens per expert nearly
    the rate of plain products."""
    low_grouped: float = 0.45
    """Share of `low_matmul` that they attain below 16 bits, with rounding of each expert's tokens and weights."""
    adapted: float = 1.15
    """Time of a frozen layer's products with adapters over their time without."""
    attention: float = 0.35
    """Share of the peak that fused causal attention attains forward in long sequences with 128 channels per head,
    counting half of the scores."""
    attention_length: float = 500.0
    """Tokens of a sequence in which fused attention attains half of that share, with a causal mask; half as many are
    enough without."""
    attention_channels: float = 21.0
    """Channels of a head with which fused attention attains half of the share that it would with many. `attention` is
    the share with 128 channels. FlashAttention-2 on H100 (arXiv:2407.08608, figure 5), forward, 16,384 tokens without a
    mask: 324 TFLOP/s with 64 channels, 370 with 128."""
    attention_backward: float = 2.9
    """Backward over forward time of fused attention."""
    scores: float = 4.0
    """Passes over the scores in the forward pass of unfused attention, which writes them."""
    scan: float = 5.0
    """Time of a state space's scan over its arithmetic at the peak plus its bytes at the claimed memory bandwidth;
    about the value that published steps of Nemotron 3 Nano imply."""
    bandwidth: float = 0.5
    passes: float = 11.0
    """Values, in units of `width`, that a layer moves per token outside its matrices, forward."""
    passes_backward: float = 1.9
    """Backward over forward traffic outside matrices."""
    logits: float = 13.0
    """Bytes that the loss and its gradient move per logit."""
    kernel_s: float = 4e-6
    host_forward_s: float = 1e-3
    """Seconds of the host for a layer's forward pass: a lower bound on any device. Half of the time of eager passes
    under a profiler: 47 and 43 ms for the 24 layers of Qwen 0.5B in public traces on H100 and MI300X."""
    host_backward_s: float = 1e-3
    host_experts_s: float = 3e-3
    """Additional seconds of the host in each direction of a layer with routed experts. Megatron Core on H100 takes 9.7
    ms for a layer of Qwen3 30B-A3B forward and backward with 4,096 tokens on a device (NVIDIA-NeMo/Megatron-Bridge,
    container 26.06); NeMo AutoModel takes 28 ms for four times as many tokens, with full recomputation."""
    host_collective_s: float = 3e-5
    host_plain_s: float = 4e-4
    """Additional seconds if the number of heads does not suit the fused softmax of unfused attention."""
    microbatch_s: float = 2e-3
    step_s: float = 1e-2
    optimizer: float = 22.0
    """Bytes that the optimizer moves per weight."""
    intra_node: float = 0.75
    intra_node_s: float = 1e-5
    """Seconds of a hop between two devices of a node."""
    inter_node: float = 0.65
    inter_node_s: float = 2e-5
    overlap: float = 0.9
    """Share of the shorter of communication and compute that is hidden under the longer, if they may overlap: about
    that of FSDP2 on 32 to 360 H200, of whose steps communication takes different shares (KempnerForge)."""
    dispatch: float = 0.9
    """Like `intra_node` and `inter_node`, for the all-to-all of tokens to their experts."""
    dispatch_units: float = 20 / 132
    """Share of the compute units that dispatch and combine take from compute they run at the same time as: 20 of an
    H800's 132 streaming multiprocessors (DeepSeek-V3, arXiv:2412.19437, section 3.2.2)."""
    host_link: float = 0.8
    """Share of the host link's bandwidth that copies attain. Assumed: 26 of PCIe 4.0's 31.5 GB/s are usual."""
    host_update: float = 0.4
    """Share of the host's memory bandwidth that an optimizer update there attains: as CPU-Adam with 10 billion weights
    in about 2.6 s on two sockets of 128 GB/s (Ren et al. 2021, arXiv:2101.06840, section 6), 28 bytes per weight."""
