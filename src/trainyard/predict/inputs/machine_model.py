"""A machine as the predictor sees it, for jobs of one dtype and one framework's software."""

from __future__ import annotations

from typing import NamedTuple

from trainyard import words
from trainyard.machine import Link, Machine, find_machine
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
        values=_with_latencies(tuned.values(), machine),
        peak=_reference(rank_hardware, dtype),
    )


def _with_latencies(values: Constants, machine: Machine) -> Constants:
    """Constants for the latencies of the machine's links. The fitted seconds of a hop are those of the machine in the
    package with the same device; constants of the machine's own are of its links already."""
    if machine.calibration:
        return values
    shipped = find_machine(machine.device.name)
    return values._replace(
        intra_node_s=_hop_seconds(values.intra_node_s, machine.intra_node, shipped.intra_node if shipped else None),
        inter_node_s=_hop_seconds(values.inter_node_s, machine.inter_node, shipped.inter_node if shipped else None),
    )


def _hop_seconds(fitted_s: float, link: Link | None, of_package: Link | None) -> float:
    """Seconds of a hop: `fitted_s`, which includes the software's time, plus the difference in latency to the link that
    it was fitted to. At least the latency, unless it was already fitted to be less."""
    if link is None:
        return fitted_s
    latency_s = link.latency.value
    if of_package is None:
        return max(fitted_s, latency_s)
    return max(fitted_s + (latency_s - of_package.latency.value), min(fitted_s, latency_s))


def _reference(rank_hardware: RankHardware, dtype: str) -> ReferencePeak:
    """The peak of the fastest products of a job that computes in `dtype`: below 16 bits those of layers run in `dtype`,
    attention and the head in bfloat16. No time at this peak is shorter than that of the products, so MFU is at most
    1."""
    peak, low_peak = float(rank_hardware.peak[0]), float(rank_hardware.low_peak[0])
    return ReferencePeak(low_peak, dtype) if low_peak >= peak else ReferencePeak(peak, "bfloat16")
