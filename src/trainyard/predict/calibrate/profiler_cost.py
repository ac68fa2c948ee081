"""A measured ledger without the cost of the profiler, which made its steps longer than those timed without it.

The profiler adds time to each operation that it records, whatever the operation does, so that an account loses time in
proportion to its number of operations: a thousand small additions lose more than one large matrix product. The cost of
an operation is the one with which the accounts sum to the step without the profiler, but not more than torch's profiler
takes: a larger difference is a machine that was slower while it profiled, which slows all accounts. On an accelerator
the host records, and its kernels take as long as without the profiler: only the accounts of its idle time lose time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainyard.ledger import Entry, Ledger

_MOST_PER_OPERATION_S = 10e-6
"""Largest cost of an operation. Measured on a Xeon with torch 2.13: 6 us of an addition, 4 to 6 us of operations of a
backward pass, 5.7 us in the mean over the operations of a decoder's step."""


def seconds_without_profiler(ledger: Ledger, step_s: float, on_device: bool) -> npt.NDArray[np.float64]:
    """Seconds of each entry of `ledger`, in its order, which sum to `step_s`, the step without the profiler.

    An entry loses at most all of its time. The remaining times are scaled by the same factor if the profiled step was
    not longer, or longer than its operations explain, as without counts. `on_device`: whether the work ran on an
    accelerator.
    """
    seconds = np.array([entry.ns / 1e9 for entry in ledger.entries])
    counts = np.array([_recorded_operations(entry, on_device) for entry in ledger.entries])
    excess_s = float(seconds.sum()) - step_s
    cost_s = min(_cost_per_operation(seconds, counts, excess_s), _MOST_PER_OPERATION_S)
    remaining_s = seconds - np.minimum(cost_s * counts, seconds)
    if not remaining_s.any():  # only operations that are as short as their cost
        remaining_s = seconds
    return remaining_s * (step_s / remaining_s.sum())


def _recorded_operations(entry: Entry, on_device: bool) -> float:
    """Operations of an entry that are longer with the profiler."""
    return 0.0 if on_device and entry.account.kind != "launch_gap" else float(entry.count)


def _cost_per_operation(seconds: npt.NDArray[np.float64], counts: npt.NDArray[np.float64], excess_s: float) -> float:
    """The seconds per operation with which the entries lose `excess_s` in total, each at most all of its `seconds`.

    0 if `excess_s` is negative; the largest useful cost if they have less time than that."""
    # The loss is linear in the cost between the costs at which an entry has lost all of its time.
    costs_s = np.append(0.0, np.unique(seconds[counts > 0] / counts[counts > 0]))
    losses_s = [np.minimum(cost_s * counts, seconds).sum() for cost_s in costs_s]
    return float(np.interp(excess_s, losses_s, costs_s))
