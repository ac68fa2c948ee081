"""Peak in-flight micro-batches of a pipeline stage: how many micro-batches' activations a rank keeps at once.

All results are columns, in units of the activations of one micro-batch in all layers of the rank. `first` selects the
first rank of the pipeline, otherwise the last one. A test compares the schedules of trainyard's own trainer with the
order of operations in `schedules.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.pipeline import schedules

_SCHEDULES_WITH_PEAKS = ("1f1b", "interleaved", "zero_bubble", "zbv", "dualpipev")
"""Schedules with different peaks; the others keep all micro-batches."""
_SCHEDULES_WITH_DELAY = ("zero_bubble", "zbv")
"""Schedules that delay several weight gradients."""


def in_flight(cases: Cases, first: bool) -> Column:
    """Peak in-flight micro-batches under 1F1B and interleaved 1F1B, as Megatron Core and torchtitan run them.

    1F1B keeps min(p, m) on the first of p ranks. Interleaved 1F1B with v virtual stages keeps p + (p - 1) / v, also at
    most m (Narayanan et al. 2021, arXiv:2104.04473, section 2.2)."""
    ranks_from_here = cases.pp if first else np.ones(1)  # from this rank to the last
    # p + (p - 1) / v = p (1 + (p - 1) / (p v)).
    micro_batches = ranks_from_here * np.where(
        cases.interleave > 1, 1 + (cases.pp - 1) / (cases.pp * cases.interleave), 1.0
    )
    return np.minimum(micro_batches, cases.accumulate)


def native_in_flight(cases: Cases, first: bool) -> Column:
    """Peak in-flight micro-batches of trainyard's own trainer, by schedule.

    1F1B and interleaved 1F1B keep the forward passes before the first backward pass. Zero-bubble schedules, which delay
    the gradients of weights, keep as many on every rank as the first rank of 1F1B does. Breadth-first schedules keep
    all. For V schedules the last rank is counted after its last forward pass and its first backward pass."""
    # A chunk is one stage of a rank. Micro-batches pass a rank's chunks in rounds of about pp of them.
    round_size = np.floor(cases.accumulate / np.maximum(1.0, np.floor(cases.accumulate / cases.pp)))
    later_ranks = cases.pp - 1 if first else np.zeros(1)
    # Forward passes of chunks before the first backward pass on the last rank: a round of all chunks but the last, and
    # one micro-batch of that.
    last_rank_peak = (cases.interleave - 1) * round_size + 1
    chunk_peaks = [  # in units of one chunk and micro-batch, in the order of `_SCHEDULES_WITH_PEAKS`
        last_rank_peak + later_ranks,
        last_rank_peak + 2 * later_ranks,
        last_rank_peak + cases.pp - 1,
        2 * cases.pp - (not first),
        2 * cases.pp + 1,
    ]
    peak = (
        np.select(_schedule_masks(cases, _SCHEDULES_WITH_PEAKS), chunk_peaks, cases.accumulate * cases.interleave)
        / cases.interleave
    )
    return np.where(cases.pp > 1, np.minimum(peak, cases.accumulate), 1.0)


def native_delayed_weight_gradients(cases: Cases, first: bool) -> Column:
    """In-flight micro-batches whose weight gradients are delayed. torch never delays those of the first stage, whose
    backward pass is whole. In zero-bubble schedules each rank delays one micro-batch more than the rank before it; in V
    schedules the last rank delays all of its last round."""
    # In units of one stage of a rank and micro-batch, in the order of `_SCHEDULES_WITH_DELAY`.
    chunk_peaks = [(cases.interleave > 1) * 1.0, np.ones(1)] if first else [cases.pp, 2 * cases.pp - 2]
    peak = np.select(_schedule_masks(cases, _SCHEDULES_WITH_DELAY), chunk_peaks, 0.0) / cases.interleave
    return np.where(cases.pp > 1, np.minimum(peak, cases.accumulate), 0.0)


def _schedule_masks(cases: Cases, names: Sequence[str]) -> list[np.ndarray]:
    """For each schedule in `names`, the mask of the cases that use it."""
    return [schedules.among(cases.schedule, (name,)) for name in names]
