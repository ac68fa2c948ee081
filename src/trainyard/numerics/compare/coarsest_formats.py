"""The coarsest number format through which the values of a tensor have passed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard.numerics.compare.align_tensors import Tensors
from trainyard.numerics.compare.comparison_rule import UNIT_ROUNDOFF
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.compare.noise_levels import F64
from trainyard.numerics.tensor_record import Phase, TensorRecord


def coarsest_so_far(records: Sequence[TensorRecord]) -> F64:
    """The largest unit round-off of each tensor and all before it. `records`: in order of execution."""
    return np.maximum.accumulate([UNIT_ROUNDOFF.get(record.dtype, 0.0) for record in records])


def coarsest_in_module(tensors: Tensors) -> dict[LogicalKey, float]:
    """The largest unit round-off of each tensor and those from which its module computed it, the first of which come
    from other modules. `tensors`: in order of execution."""
    coarsest: dict[LogicalKey, float] = {}
    known: dict[tuple[int, int, int], LogicalKey] = {}
    for key, record in tensors.items():
        roundoff = UNIT_ROUNDOFF.get(record.dtype, 0.0)
        for index in record.inputs:
            source = known.get((key.rank, record.step, index))
            if source is not None:
                other = tensors[source]
                is_own = _is_of_others(record) or (other.module == record.module and other.phase == _phase(record))
                roundoff = max(roundoff, coarsest[source] if is_own else UNIT_ROUNDOFF.get(other.dtype, 0.0))
        coarsest[key] = roundoff
        known[key.rank, record.step, record.index] = key
    return coarsest


def _is_of_others(record: TensorRecord) -> bool:
    """Whether other modules compute a tensor: the input of a module, or the gradient of its output."""
    return record.role == "input" or (record.role == "gradient" and not record.name)


def _phase(record: TensorRecord) -> Phase:
    """The phase in which a tensor is computed: gradients of parameters are recorded before the optimizer's step."""
    return "backward" if record.role == "gradient" else record.phase
