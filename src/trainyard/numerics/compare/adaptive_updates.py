"""Errors of weights that adaptive optimizers make of rounding.

Adam divides a gradient by its size: in the first steps an element moves by the learning rate in the direction of its
sign, however small it is. Elements that are smaller than their rounding errors move either way, so that the error of an
update is not proportional to that of the gradient: if a fraction p of n elements changes sign, it is 2 sqrt(p). The
estimate of p is the relative noise of the gradient; two more elements are allowed, as p n may be below 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import numpy as np

from trainyard.numerics.compare.noise_levels import F64
from trainyard.numerics.tensor_record import TensorRecord

_LINEAR_STATES = ("momentum_buffer", "step", "ax", "mu", "eta")
"""Last parts of the names of optimizer states that exist for optimizers whose updates are linear in the gradient."""
_MORE_ELEMENTS = 2

_Parameter = tuple[str, str]


def update_errors(records: Sequence[TensorRecord], sketches: F64, norms: F64, noise: F64) -> F64:
    """The relative error [t] of each weight that changed signs in its update explain; 0 for other tensors.

    `records`: in order of execution; `sketches` [t, s], `norms` [t]: of the float64 reference; `noise` [t]: of all
    tensors, from which that of the gradients is taken.
    """
    errors = np.zeros(len(records))
    adaptive = {_parameter(record) for record in records if _is_adaptive(record)}
    weights: dict[_Parameter, list[int]] = {}
    gradients: dict[tuple[int, _Parameter], float] = {}
    for row, record in enumerate(records):
        if record.role == "gradient" and record.name:
            gradients[record.step, _parameter(record)] = noise[row]
        elif record.role == "weight" and _parameter(record) in adaptive:
            weights.setdefault(_parameter(record), []).append(row)
    for parameter, rows in weights.items():
        initial = [row for row in rows if records[row].phase == "forward"]
        updated = rows[len(initial) :]
        sizes = _update_sizes(sketches[rows], norms[rows], has_initial=bool(initial))
        for row, size in zip(updated, sizes[len(initial) :]):
            share = min(1.0, gradients.get((records[row].step, parameter), 1.0))
            errors[row] = size * 2 * sqrt(min(1.0, share + _MORE_ELEMENTS / max(1, prod(records[row].shape))))
    return errors


def _update_sizes(sketches: F64, norms: F64, has_initial: bool) -> list[float]:
    """The size of each update of a weight relative to it, at most 1. `has_initial`: the first sketch is of the weight
    before all updates; without it the first update is taken to be as large as the second, and 1 if there is none."""
    changes: list[float] = np.linalg.norm(np.diff(sketches, axis=0), axis=1).tolist()
    first = 0.0 if has_initial else changes[0] if changes else float(norms[0])
    return [min(1.0, change / norm) if norm else 1.0 for change, norm in zip([first, *changes], norms.tolist())]


def _is_adaptive(record: TensorRecord) -> bool:
    """Whether a tensor is a state of an optimizer that scales gradients by their size."""
    return record.role == "optimizer_state" and record.name.rpartition(".")[2] not in _LINEAR_STATES


def _parameter(record: TensorRecord) -> _Parameter:
    """Module and name of the parameter that a gradient, weight or state belongs to."""
    name = record.name.rpartition(".")[0] if record.role == "optimizer_state" else record.name
    return record.module, name
