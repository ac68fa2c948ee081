"""What a planner must know of a device, a fabric and the software on them beyond their peaks: one number each.

They are fitted to measurements (`validation/fit.py`), and kept in data/constants/*.toml as claims. What stands here is
what is assumed where nothing was measured: about the geometric mean over devices and software that were.
"""

from __future__ import annotations

from typing import NamedTuple

SHARES = frozenset(
    (
        "matmul",
        "low_matmul",
        "grouped",
        "attention",
        "bandwidth",
        "inside",
        "between",
        "overlap",
        "dispatch",
        "host_link",
        "host_update",
    )
)
"""Those that cannot be more than one."""
AT_LEAST_ONE = frozenset(("imbalance", "adapted"))


class Constants(NamedTuple):
    """Shares are of what the machine's file claims; `_s` are seconds. All are positive.

    A product of (m x k) by (k x n) reaches matmul / ((1 + rows/m) (1 + columns/n) (1 + depth/k)) of the peak.
    """

    matmul: float = 0.72
    rows: float = 130.0
    columns: float = 60.0
    depth: float = 120.0
    low_matmul: float = 0.75
    """As `matmul`, below 16 bits: with what it costs to round."""
    grouped: float = 0.78
    """What products of many experts reach of `matmul`."""
    adapted: float = 1.15
    """How many times as long a frozen layer's products take beside adapters."""
    attention: float = 0.35
    """Share of the peak that fused attention reaches forward, of half its scores."""
    attention_backward: float = 2.9
    """How many times as long it takes backward."""
    scores: float = 4.0
    """Passes over the scores where attention writes them, forward."""
    scan: float = 5.0
    """How many times as long the scan of a state space takes as its arithmetic at the peak and its bytes at the
    memory's claimed bandwidth would: about what published steps of Nemotron 3 Nano leave for it."""
    bandwidth: float = 0.5
    passes: float = 11.0
    """Widths that a layer moves a token forward outside its matrices."""
    passes_backward: float = 1.9
    """How many times that backward."""
    logits: float = 13.0
    """Bytes moved a logit by the loss and its gradient."""
    kernel_s: float = 4e-6
    host_forward_s: float = 3e-4
    """That the host takes for a layer, so that no device is faster."""
    host_backward_s: float = 4e-4
    host_collective_s: float = 3e-5
    host_plain_s: float = 4e-4
    """More, where the fused softmax of unfused attention does not fit the heads."""
    microbatch_s: float = 2e-3
    step_s: float = 1e-2
    optimizer: float = 22.0
    """Bytes the optimizer moves a weight it keeps the state of."""
    inside: float = 0.75
    inside_s: float = 1e-5
    """A hop between two devices of a node."""
    between: float = 0.65
    between_s: float = 2e-5
    overlap: float = 0.55
    """Share of the shorter of communication and compute that disappears under the longer, where they may overlap."""
    dispatch: float = 0.9
    """As `inside` and `between`, of an all-to-all of tokens to their experts."""
    host_link: float = 0.8
    """Of what is copied between a device and its host. Assumed: 26 of PCIe 4.0's 31.5 GB/s are usual."""
    host_update: float = 0.4
    """Of the host's memory, that an update there reaches: what a CPU-Adam of 10 billion weights in about 2.6 s does on
    two sockets of 128 GB/s (Ren et al. 2021, arXiv:2101.06840, section 6), 28 bytes a weight."""
    imbalance: float = 1.2
    """Tokens of the busiest rank's experts, over the mean."""
