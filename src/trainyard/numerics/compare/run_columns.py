"""The values of a run of A in columns, tensor by tensor of its plain run.

The reference and the replicas of a large model have many thousands of tensors, of which only values are compared. They
are kept in arrays, so that the records of one run at a time are in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.numerics.compare.align_tensors import Tensors
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.compare.noise_levels import F64
from trainyard.numerics.tensor_record import BUCKETS, NonFinite, TensorRecord

Bools = npt.NDArray[np.bool_]


class RunColumns(NamedTuple):
    """Columns of a run for given tensors [t] of the plain run. `present`: the run has the tensor; `comparable`: with
    values, and in the same shape. `sketches` [t, s]: NaN without values; `norms`: 0 without. `nonfinite`: by row, of
    those with elements that are not finite."""

    present: Bools
    comparable: Bools
    sketches: F64
    norms: F64
    nonfinite: Mapping[int, NonFinite]


def run_columns(keys: Sequence[LogicalKey], plain: Tensors, run: Tensors) -> RunColumns:
    """The columns of `run` for the tensors `keys` of the `plain` run.

    Operations that the two call a different number of times are not present: the numbers of their calls do not
    match. In float64 there are fewer casts.
    """
    common = _common_calls(plain, run)
    records = [run.get(key) if not key.tensor.operation or _call(key) in common else None for key in keys]
    return RunColumns(
        present=np.array([record is not None for record in records], np.bool_),
        comparable=np.array(
            [
                record is not None and bool(record.sketch) and record.shape == plain[key].shape
                for key, record in zip(keys, records)
            ],
            np.bool_,
        ),
        sketches=sketches_of(records),
        norms=np.array([0.0 if record is None else record.norm for record in records]),
        nonfinite={
            row: record.nonfinite
            for row, record in enumerate(records)
            if record is not None and record.nonfinite is not None
        },
    )


def sketches_of(records: Sequence[TensorRecord | None]) -> F64:
    """The sketches [t, s]; NaN for None, and without values."""
    missing = np.full(BUCKETS, np.nan).tobytes()
    data = b"".join(record.sketch if record is not None and record.sketch else missing for record in records)
    return np.frombuffer(data, "<f8").reshape(len(records), BUCKETS)


def _common_calls(plain: Tensors, run: Tensors) -> frozenset[tuple[object, ...]]:
    """The operations that a run calls as often as the plain run."""
    numbers = _count_calls(plain)
    return frozenset(call for call, number in _count_calls(run).items() if numbers[call] == number)


def _count_calls(tensors: Tensors) -> Counter[tuple[object, ...]]:
    """How often each operation was called, per step, phase, module and rank."""
    return Counter(_call(key) for key in tensors if key.tensor.operation)


def _call(key: LogicalKey) -> tuple[object, ...]:
    tensor = key.tensor
    return (tensor.step, tensor.phase, tensor.module, tensor.operation, tensor.role, tensor.output, key.rank)
