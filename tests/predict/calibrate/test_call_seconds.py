"""The time of a layer's calls on a CPU follows from the operations that a trace counted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.predict.calibrate.test_fit_constants import BASE, HERE, LAYOUTS, a_job, as_run
from trainyard.predict.calibrate import fit_constants
from trainyard.predict.calibrate.call_seconds import call_seconds
from trainyard.predict.calibrate.measured_run import MeasuredRun


def with_calls(run: MeasuredRun, forward: int, backward: int) -> MeasuredRun:
    """The run with counts of short operations, and of products, which do not count as calls."""
    counts = {"forward": forward, "backward": backward}
    entries = tuple(
        replace(entry, count=counts.get(entry.phase, 0))
        if str(entry.account) == "compute/elementwise"
        else replace(entry, count=100 if str(entry.account) == "compute/matmul" else 0)
        for entry in run.ledger.entries
    )
    return run._replace(ledger=replace(run.ledger, entries=entries))


RUN = as_run(HERE, BASE, a_job(LAYOUTS[0]), "a run")


def test_calls_are_those_of_short_operations_per_layer_and_micro_batch() -> None:
    """4 layers, and 2 micro-batches on each of 2 ranks."""
    seconds = call_seconds([with_calls(RUN, 240, 400)], 5e-6)
    assert seconds == pytest.approx({"host_forward_s": 30 * 5e-6, "host_backward_s": 50 * 5e-6})


def test_layout_with_the_fewest_calls_counts() -> None:
    few, many = with_calls(RUN, 240, 400), with_calls(RUN, 2400, 4000)
    assert call_seconds([many, few], 5e-6) == call_seconds([few], 5e-6)


def test_runs_without_counts_keep_the_assumed_times() -> None:
    assert call_seconds([RUN], 5e-6) == {}


def test_fit_starts_from_the_counted_calls() -> None:
    """Without measured seconds that say otherwise, the fit stays near the counted calls instead of 3 ms."""
    truth = BASE._replace(host_forward_s=3e-4, host_backward_s=6e-4)
    job = a_job(LAYOUTS[0])
    # Calls of 5 microseconds, as `as_probed` measures them.
    run = with_calls(as_run(HERE, truth, job, "a run"), 480, 960)
    fitted = fit_constants.calibrate_machine(HERE, BASE, [run]).calibration
    assert fitted["host_forward_s"].value == pytest.approx(3e-4, rel=0.3)
    assert fitted["host_backward_s"].value == pytest.approx(6e-4, rel=0.3)
