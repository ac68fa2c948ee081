"""Seconds of a CPU device to call the operations of a layer, from the operations of traced steps.

A call takes a few microseconds before an operation does any work: the probe measures them with an addition of two
numbers (`kernel_s`). A trace has the number of operations, which depends on the framework and cannot be derived from
the model: hundreds of a layer's forward pass are views, casts and additions.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.predict.calibrate.measured_run import MeasuredRun, part_of_account
from trainyard.predict.inputs import cases

_CALLED = ("elementwise", "host")
"""Parts of a step whose operations are as short as their calls; products have a call each in `kernel_s`."""
_PHASES = {"host_forward_s": "forward", "host_backward_s": "backward"}


def call_seconds(runs: Sequence[MeasuredRun], call_s: float) -> dict[str, float]:
    """The constants `host_forward_s` and `host_backward_s` by name: seconds of a layer's calls for a micro-batch. Empty
    if no run has counts of operations. `call_s`: seconds of one call.

    Of the runs, the one with the fewest calls counts: layouts with distributed tensors have more, which belong to
    `host_collective_s`.
    """
    seconds = {
        name: [calls * call_s for run in runs if (calls := _calls_per_layer(run, phase))]
        for name, phase in _PHASES.items()
    }
    return {name: min(values) for name, values in seconds.items() if values}


def _calls_per_layer(run: MeasuredRun, phase: str) -> float:
    """Short operations of a phase per layer and micro-batch on a rank; 0 without counts."""
    case = cases.of_jobs([run.job])
    layer_passes = float((case.layers * case.accumulate / case.pp)[0])
    calls = sum(
        entry.count
        for entry in run.ledger.entries
        if entry.phase == phase and part_of_account(entry.account) in _CALLED
    )
    return calls / layer_passes
