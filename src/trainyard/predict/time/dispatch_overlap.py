"""Dispatch and combine of one micro-batch during the compute of another, as columns of shape [case].

In a pipeline with one forward and one backward pass at a time, the dispatch and combine of the forward pass run during
the compute of the backward pass of another micro-batch, and the reverse (DualPipe: DeepSeek-V3, arXiv:2412.19437,
section 3.2.1; Megatron Core: `--overlap-moe-expert-parallel-comm`). Their kernels take a share of the compute units.
"""

from __future__ import annotations

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.time.layer import Phase


def overlap(
    cases: Cases, tuned: Constants, forward: Phase, recomputation: Phase, backward: Phase
) -> tuple[Phase, Phase]:
    """(forward, backward) times of a layer with its dispatch hidden where `cases.overlaps_dispatch` is 1, mean over the
    micro-batches of a step. The compute that hides it takes longer."""
    communication_s = forward.dispatch + backward.dispatch
    compute_s = forward.compute + recomputation.compute + backward.compute
    # While the communication runs, compute has the other units: it takes `compute_s / (1 - units)` at most.
    units = tuned.dispatch_units
    covered_s = np.minimum(communication_s, compute_s / (1 - units))
    paired = np.where(cases.overlaps_dispatch > 0, paired_share(cases), 0.0)
    hidden_share = paired * np.divide(
        covered_s, communication_s, out=np.zeros_like(covered_s), where=communication_s > 0
    )
    slowdown = 1 + paired * units * covered_s / compute_s
    return _hide(forward, hidden_share, slowdown), _hide(backward, hidden_share, slowdown)


def paired_share(cases: Cases) -> Column:
    """Share of the micro-batches whose forward pass coincides with the backward pass of another, mean over ranks: all
    but those before a rank's first backward pass, and one more that the pairs need."""
    pp, chunks = cases.pp, cases.interleave
    warmup = np.where(chunks > 1, (pp - 1 + (chunks - 1) * pp) / chunks, (pp - 1) / 2)
    return np.clip(1 - (warmup + 1) / cases.accumulate, 0.0, 1.0)


def _hide(phase: Phase, hidden_share: Column, slowdown: Column) -> Phase:
    """The phase with `hidden_share` of its dispatch hidden, and compute that takes `slowdown` times as long."""
    return phase._replace(
        matmul=phase.matmul * slowdown,
        attention=phase.attention * slowdown,
        elementwise=phase.elementwise * slowdown,
        route=phase.route * slowdown,
        scan=phase.scan * slowdown,
        dispatch=phase.dispatch * (1 - hidden_share),
        hidden_dispatch=phase.dispatch * hidden_share,
    )
