"""Errors of sums, which depend on the order in which a kernel adds.

Replicas jitter the result of an operation, not the additions inside it, so that they do not show that another kernel
may add in a worse order. Adding n terms in sequence has a relative error of at most c u sqrt(n) with high probability,
with the unit round-off u and a small constant c (Higham and Mary 2019, A New Approach to Probabilistic Rounding Error
Analysis, SIAM Journal on Scientific Computing 41). Signs of rounding errors are not independent if terms are equal, as
are gradients behind a mean: a bias gradient of 1,024 terms had c = 1.6. If all terms are equal, the error can reach
u n / 4, which is not allowed for: limits would hide faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from trainyard.numerics.compare.align_tensors import Tensors
from trainyard.numerics.compare.comparison_rule import UNIT_ROUNDOFF
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.compare.noise_levels import F64

_CONSTANT = 2.0
"""c: the error in units of u sqrt(n)."""
_TERMS_OF_SQUARES = 4
"""By how many times the terms of a state exceed those of the gradient: a square has twice the relative error."""


def summation_errors(terms: Sequence[float], roundoff: F64) -> F64:
    """The relative errors [t] of tensors that are sums of `terms` [t] terms each, added in sequence; 0 for a single
    term. `roundoff`: [t] of their formats. Half-precision formats are accumulated in float32."""
    numbers = np.array(terms)
    return np.where(numbers > 1, np.minimum(roundoff, UNIT_ROUNDOFF["float32"]) * _CONSTANT * np.sqrt(numbers), 0.0)


def summed_terms(tensors: Tensors) -> dict[LogicalKey, float]:
    """The number of terms of each tensor, of one side in order of execution.

    An operation whose largest input has n times the elements of its result adds n terms. Tensors that follow from a sum
    element by element have its number: results, the gradient that it is, and the optimizer's states of that parameter.
    """
    elements = {(key.rank, record.step, record.index): prod(record.shape) for key, record in tensors.items()}
    by_record: dict[tuple[int, int, int], float] = {}
    by_parameter: dict[tuple[str, str], float] = {}
    by_key: dict[LogicalKey, float] = {}
    for key, record in tensors.items():
        size = max(1, prod(record.shape))
        sources = [(key.rank, record.step, index) for index in record.inputs if index < record.index]
        terms = max([1.0, *(by_record.get(source, 1.0) for source in sources if elements.get(source) == size)])
        if record.operation:
            terms = max(terms, max((elements.get(source, 0) for source in sources), default=0) / size)
        elif record.role == "gradient" and record.name:
            by_parameter[record.module, record.name] = terms
        elif record.role == "optimizer_state":
            of_gradient = by_parameter.get((record.module, record.name.rpartition(".")[0]), 1.0)
            terms = max(terms, _TERMS_OF_SQUARES * of_gradient) if of_gradient > 1 else terms
        by_record[key.rank, record.step, record.index] = by_key[key] = terms
    return by_key
