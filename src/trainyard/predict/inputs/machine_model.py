"""A machine as the predictor sees it, for jobs of one dtype and one framework's software."""

from __future__ import annotations

from typing import NamedTuple

from trainyard import words
from trainyard.machine import Machine
from trainyard.predict.inputs import constant_sets, hardware
from trainyard.predict.inputs.constant_sets import ConstantSet
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware


class ReferencePeak(NamedTuple):
    """The peak that MFU refers to: `flops_per_s`, of any number of ranks, in `dtype`."""

    flops_per_s: float
    dtype: str


class MachineModel(NamedTuple):
    """`hardware`: the machine's claims as columns. `software`: the framework's; `tuned`: the fitted constants with
    their source; `values`: the same constants as numbers. `peak`: of one rank."""

    machine: Machine
    hardware: RankHardware
    software: str
    tuned: ConstantSet
    values: Constants
    peak: ReferencePeak


def build(machine: Machine, software: str, dtype: str) -> MachineModel:
    """The performance model of `machine` for jobs that compute in `dtype` under `software`, the framework whose fitted
    constants apply (`ConstantSet.software`). Below 16 bits only the matrix products of layers run in `dtype`,
    everything else in bfloat16. Raises `UnknownName` for a device without a peak in one of them."""
    is_low_precision = words.DTYPES[dtype] < 2
    rank_hardware = hardware.of_machine(
        machine, "bfloat16" if is_low_precision else dtype, dtype if is_low_precision else ""
    )
    tuned = constant_sets.choose(machine, software)
    return MachineModel(
        machine=machine,
        hardware=rank_hardware,
        software=software,
        tuned=tuned,
        values=tuned.values(),
        peak=_reference(rank_hardware, dtype),
    )


def _reference(rank_hardware: RankHardware, dtype: str) -> ReferencePeak:
    """The peak of the fastest products of a job that computes in `dtype`: below 16 bits those of layers run in `dtype`,
    attention and the head in bfloat16. No time at this peak is shorter than that of the products, so MFU is at most
    1."""
    peak, low_peak = float(rank_hardware.peak[0]), float(rank_hardware.low_peak[0])
    return ReferencePeak(low_peak, dtype) if low_peak >= peak else ReferencePeak(peak, "bfloat16")
