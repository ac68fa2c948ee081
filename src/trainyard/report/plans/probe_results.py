"""Results of `trainyard probe` and `trainyard probe fit`: a machine, with the measurements behind it."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.machine import Machine
from trainyard.predict.calibrate import machine_file

PROBED_SCHEMA, FITTED_SCHEMA = "trainyard/machine/2", "trainyard/fit/2"


class TimedCall(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one call on rank 0, while all ranks measure. `size`: (m, n, k) of a matmul; (tokens, channels per
    head, 0 forward or 1 backward) of attention with four heads; else (bytes,). `seconds`: the median of several tries;
    `low_s`, `high_s`: their quartiles. `rate`: in `unit`."""

    operation: str
    size: tuple[int, ...]
    seconds: float
    low_s: float
    high_s: float
    rate: float
    unit: Literal["FLOP/s", "bytes/s"]


class ProbedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine measured by its own devices. `toml`: the machine file for `plan --machine`. `warnings`: reasons to
    distrust the times, such as a loaded machine."""

    schema: Literal["trainyard/machine/2"] = PROBED_SCHEMA
    machine: Machine
    ranks: int
    dtype: str
    calls: tuple[TimedCall, ...]
    warnings: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The device with its measured matmul rate and memory bandwidth."""
        device = self.machine.device
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        return (
            f"{device.name}, {ranks}: {self.dtype} matmul {device.peak[self.dtype].value / 1e9:,.1f} GFLOP/s per rank, "
            f"memory bandwidth {device.bandwidth.value / 1e9:,.1f} GB/s."
        )

    @property
    def toml(self) -> str:
        """The machine file for `plan --machine`."""
        return machine_file.write(self.machine, "Written by `trainyard probe`.")

    def _repr_html_(self) -> str:
        """The tables for a notebook."""
        from trainyard.report.plans import probe_tables
        from trainyard.report.render.html_tables import tables_html

        return tables_html(self.headline, (probe_tables.calls(self), probe_tables.constants(self.machine)))


class FittedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The step of a run in seconds: measured without the profiler, predicted before the fit, predicted after it."""

    name: str
    layout: str
    measured_s: float
    before_s: float
    after_s: float


class FittedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine whose constants were fitted to stored runs. `toml`: the machine file for `plan --machine`."""

    schema: Literal["trainyard/fit/2"] = FITTED_SCHEMA
    machine: Machine
    runs: tuple[FittedRun, ...]

    @property
    def headline(self) -> str:
        """The largest relative error of a predicted step over the runs, after the fit and before it."""
        error_before = max(abs(run.before_s / run.measured_s - 1) for run in self.runs)
        error_after = max(abs(run.after_s / run.measured_s - 1) for run in self.runs)
        runs = f"{len(self.runs)} run{'s' if len(self.runs) > 1 else ''}"
        return (
            f"{self.machine.name}, fitted to {runs}: the largest error of a step is {100 * error_after:.1f} %; it was "
            f"{100 * error_before:.1f} %. {describe_interval(self.machine)}"
        )

    @property
    def toml(self) -> str:
        """The machine file for `plan --machine`."""
        return machine_file.write(self.machine, "Written by `trainyard probe fit`.")

    def _repr_html_(self) -> str:
        """The tables for a notebook."""
        from trainyard.report.plans import probe_tables
        from trainyard.report.render.html_tables import tables_html

        return tables_html(self.headline, (probe_tables.runs(self), probe_tables.constants(self.machine)))


def describe_interval(machine: Machine) -> str:
    """A sentence on the 80 % prediction interval of steps on this machine, which the machine holds as factors."""
    if machine.prediction_interval is None:
        return "Its 80 % prediction interval is not calibrated: that takes runs of four jobs."
    low, high = machine.prediction_interval  # times the predicted step
    return f"80 % prediction interval: {low:.2f} to {high:.2f} times the predicted step."
