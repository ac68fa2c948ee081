"""Warnings of stored runs: load, throttling and spread, each only if it was measured."""

from __future__ import annotations

import re

import msgspec

from tests.stored import JOB, samples
from trainyard.machine_load import MachineLoad
from trainyard.record import Provenance, Run
from trainyard.store.measurement_warnings import loaded_runs_caveats, measurement_warnings

IDLE = MachineLoad(window_s=9.0, cores=2, run_cores=1.9, other_cores=0.05)
BUSY = MachineLoad(window_s=9.0, cores=2, run_cores=1.2, other_cores=0.7)


def run(load: MachineLoad | None, clocks: dict[str, str] | None = None, spread: int = 0) -> Run:
    """A run whose timed steps take 100 ns and `spread` ns more in every second step."""
    template = Run(id="r", job=JOB, started="2025-01-01T00:00:00.000+00:00", samples=samples())
    steps = tuple(
        msgspec.structs.replace(template.samples[1], step=step, rank=0, repeat=0, wall_ns=100 + spread * (step % 2))
        for step in range(20)
    )
    return msgspec.structs.replace(template, samples=steps, provenance=Provenance(load=load, clocks=clocks or {}))


def test_quiet_run_has_no_warning() -> None:
    assert measurement_warnings(run(IDLE)) == measurement_warnings(run(None)) == []


def test_each_reason_has_one_warning() -> None:
    clocks = {"at_work.nvidia.0.slowdown": "power cap"}
    assert [len(measurement_warnings(run(*case))) for case in ((BUSY,), (IDLE, clocks), (IDLE, {}, 60))] == [1, 1, 1]
    assert len(measurement_warnings(run(BUSY, clocks, 60))) == 3


def test_spread_is_that_of_the_middle_steps() -> None:
    (warning,) = measurement_warnings(run(None, spread=60))
    assert re.findall(r"\d+ ns", warning) == ["100 ns", "160 ns", "130 ns"]


def test_gate_caveat_counts_loaded_runs_of_each_side() -> None:
    (caveat,) = loaded_runs_caveats([run(BUSY), run(IDLE), run(BUSY)], [run(IDLE), run(IDLE), run(BUSY)])
    assert re.findall(r"[\d.]*\d", caveat) == ["2", "3", "1", "3", "0.7", "2"]
    assert loaded_runs_caveats([run(IDLE)], [run(None)]) == []
    assert loaded_runs_caveats([], []) == []


def test_stored_load_is_read_back() -> None:
    encoded = msgspec.json.encode(run(BUSY))
    assert msgspec.json.decode(encoded, type=Run).provenance.load == BUSY
