"""A machine as the predictor sees it, for jobs of one dtype and one framework's software."""

from __future__ import annotations

from typing import NamedTuple

from trainyard import words
from trainyard.machine import Machine
from trainyard.predict.inputs import constant_sets, hardware
from trainyard.predict.inputs.constant_sets import ConstantSet
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware


class MachineModel(NamedTuple):
    """`hardware`: the machine's claims as columns. `tuned`: the fitted constants with their source; `values`: the same
    constants as numbers."""

    machine: Machine
    hardware: RankHardware
    tuned: ConstantSet
    values: Constants


def of(machine: Machine, software: str, dtype: str) -> MachineModel:
    """Below 16 bits only the matrix products of layers run in `dtype`, and everything else in bfloat16. Raises
    `UnknownName` for a device without a peak in one of them."""
    low = words.DTYPES[dtype] < 2
    columns = hardware.of_machine(machine, "bfloat16" if low else dtype, dtype if low else "")
    tuned = constant_sets.choose(machine, software)
    return MachineModel(machine=machine, hardware=columns, tuned=tuned, values=tuned.values())
