"""`probe` and `fit_machine`: the constants of a machine from benchmarks and from stored runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainyard import machine as machines
from trainyard.errors import BadInput
from trainyard.machine_load import load_warning, present_load_warning
from trainyard.predict.calibrate import fit_constants, probed_machine
from trainyard.predict.calibrate.measured_run import MeasuredRun
from trainyard.predict.calibrate.probe_spread import spread_warning
from trainyard.predict.calibrate.probed_machine import ProbedTime
from trainyard.predict.calibrate.step_noise import step_noise
from trainyard.predict.inputs import constant_sets
from trainyard.report.plans.probe_results import FittedMachine, FittedRun, ProbedMachine, TimedCall
from trainyard.run.probe import devices
from trainyard.run.probe.wait_until_idle import wait_until_idle
from trainyard.store.run_summary import step_walls


def probe_machine(ranks: int | None, dtype: str, wait_s: float, say: Callable[[str], None]) -> ProbedMachine:
    """Times calls on `ranks` devices here, None for all, and derives a machine from them. `dtype`: number format of the
    matrix products; `wait_s`: longest wait for other processes to become idle; `say`: is called with a message if there
    is a wait. A machine that stays busy is measured, with a warning."""
    device, count, driver_warnings = devices.devices(ranks, dtype)
    before = present_load_warning(wait_until_idle(wait_s, say))
    probes, load = devices.probe(device.vendor, count, dtype)
    during = load_warning(load)
    calls = tuple(timed_call(probe) for probe in probes)
    machine = probed_machine.machine("here", device, count, dtype, probes)
    return ProbedMachine(
        machine=machine,
        ranks=count,
        dtype=dtype,
        calls=calls,
        warnings=(*driver_warnings, *filter(None, (during or before, spread_warning(probes)))),
    )


def timed_call(probe: ProbedTime) -> TimedCall:
    """A call as timed by the probe, with the unit of its rate."""
    return TimedCall(
        operation=probe.what,
        size=probe.size,
        seconds=probe.seconds,
        low_s=probe.low,
        high_s=probe.high,
        rate=probe.rate,
        unit="FLOP/s" if probe.what in ("matmul", "attention") else "bytes/s",
    )


def fit_to_runs(names: Sequence[str], machine: str, say: Callable[[str], None] = lambda _: None) -> FittedMachine:
    """Fits the constants of a machine, a name or a TOML file, to stored runs. `say`: is called with a message for each
    run whose traces are damaged."""
    if not names:
        raise BadInput("No run given.", "Pass stored runs of the machine by id, tag or folder: trainyard runs.")
    return fit(machines.load(machine), [measured_run(name, say) for name in names])


def fit(machine: machines.Machine, runs: Sequence[MeasuredRun]) -> FittedMachine:
    """The machine with constants fitted to `runs`, and each run's step in s as predicted before and after."""
    assumed = constant_sets.choose(machine, "fsdp").values()
    fitted = fit_constants.calibrate_machine(machine, assumed, runs)
    constants = constant_sets.choose(fitted, "fsdp").values()
    rows = tuple(
        FittedRun(
            name=run.name,
            layout=str(run.job.layout),
            measured_s=run.seconds,
            before_s=fit_constants.seconds(machine, assumed, run.job),
            after_s=fit_constants.seconds(fitted, constants, run.job),
        )
        for run in runs
    )
    return FittedMachine(machine=fitted, runs=rows)


def measured_run(name: str, say: Callable[[str], None]) -> MeasuredRun:
    """The stored run `name` with its mean ledger, its timed step in s and the noise of that. Raises `BadInput` without
    a ledger or timed steps."""
    from trainyard.api.named_inputs import find

    side = find(name, say=say).side()
    if side.run is None or side.job is None or not side.timed_ns:
        raise BadInput(f"{name} is not a run of a job with timed steps.", "Pass a stored run of a job file.")
    timed = side.run.measured()
    repeats_ns = [
        step_walls(sample for sample in timed if sample.repeat == repeat)
        for repeat in sorted({sample.repeat for sample in timed})
    ]
    return MeasuredRun(
        name=name,
        job=side.job,
        ledger=side.mean,
        seconds=side.timed_ns / 1e9,
        noise=step_noise(repeats_ns),
        on_device=any(device.vendor != "cpu" for device in side.run.provenance.devices),
    )
