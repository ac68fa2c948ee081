"""How far rounding alone moves each tensor of A, and the limit on the error of B that follows.

Shape letters: n runs of A (the plain one and its jittered replicas), t tensors, s numbers in a sketch. Errors are
relative to the norm of the float64 reference; NaN where a run lacks the tensor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.numerics.compare.comparison_rule import UNINFORMATIVE, ComparisonRule
from trainyard.numerics.compare.ratio_quantile import ratio_quantile
from trainyard.numerics.tensor_record import BUCKETS

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_DEGREES = np.array([1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, BUCKETS])
"""Degrees of freedom of which quantiles are computed; others are rounded down."""


class NoiseLevels(NamedTuple):
    """Columns of all tensors [t]: `noise`, the largest relative error of A's runs, at least the unit round-off; `limit`, the
    relative error that B's rounding does not exceed."""

    noise: F64
    limit: F64


def relative_errors(sketches: F64, reference: F64, norms: F64) -> F64:
    """The relative errors [..., t] that sketches [..., t, s] estimate, against those of the reference [t, s] with
    `norms` [t]. The estimate is unbiased, with a relative standard deviation of 9 % for 64 numbers; it is exact for
    tensors of up to 64 elements. Infinite if the reference is 0 and the tensor is not."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        deviations = np.linalg.norm(sketches - reference, axis=-1)
        return np.where(deviations == 0, 0.0, deviations / norms)


def noise_levels(
    rule: ComparisonRule, errors: F64, degrees: I64, *, roundoff: F64, scale: F64, groups: I64
) -> NoiseLevels:
    """The noise and limit of each tensor.

    `errors`: [n, t] relative errors of A's runs; `degrees`: [t] their degrees of freedom. `roundoff`: [t] unit
    round-off of the coarser dtype of the two sides; `scale`: [t] by how much B's round-off exceeds A's, at least 1.
    `groups`: [t] numbers of the phases and steps.

    Some errors are rare and large, as when an element of a gradient changes its side of a ReLU. If the error of a run
    would raise an alarm against the other runs, rounding reaches that size in any tensor of the group.
    """
    present = (~np.isnan(errors)).sum(axis=0)
    largest = np.nanmax(np.where(np.isnan(errors), 0.0, errors), axis=0, initial=0.0)
    regular = scale * _quantiles(rule, degrees, present) * largest
    rare = scale * _rare_errors(rule, errors, degrees, roundoff, groups)
    limit = rule.margin * np.maximum(np.maximum(regular, roundoff), rare)
    return NoiseLevels(np.maximum(scale * largest, roundoff), limit)


def degrees_of_freedom(deviations: F64) -> I64:
    """The degrees of freedom [t] of errors, from the sketches [n, t, s] of A's runs minus those of the reference.

    The inverse of the mean squared cosine between the errors of two runs (Satterthwaite 1946), with twice the standard
    error added: few pairs must not feign many degrees. 1 if errors are parallel, as for a tensor with a single element.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        lengths = np.linalg.norm(deviations, axis=-1, keepdims=True)
        directions = deviations / lengths
    first, second = np.triu_indices(len(deviations), 1)
    if not len(first):
        return np.ones(deviations.shape[1], np.int64)
    squares = np.einsum("pts,pts->pt", directions[first], directions[second]) ** 2
    pairs = np.isfinite(squares).sum(axis=0)
    squares = np.where(np.isfinite(squares), squares, 0.0)
    total = np.maximum(pairs, 1)
    mean = squares.sum(axis=0) / total
    variance = np.maximum((squares**2).sum(axis=0) / total - mean**2, 0.0)
    with np.errstate(divide="ignore"):
        estimate = np.where(pairs > 0, 1 / (mean + 2 * np.sqrt(variance / total)), 1.0)
    return _DEGREES[np.searchsorted(_DEGREES, np.clip(estimate * (1 + 1e-9), 1, BUCKETS), side="right") - 1]


def _quantiles(rule: ComparisonRule, degrees: I64, errors: I64) -> F64:
    """The quantile [t] of the ratio of an error of `degrees` [t] degrees of freedom to the largest of `errors` [t]
    others. The probability of an alarm is divided by the number of tensors (Bonferroni)."""
    probability = rule.false_alarm / max(1, rule.tensors)
    quantiles = np.ones(len(degrees))
    for degree, count in {*zip(degrees.tolist(), errors.tolist())}:
        chosen = (degrees == degree) & (errors == count)
        quantiles[chosen] = ratio_quantile(degree, count, probability) if count else 1.0
    return quantiles


def _rare_errors(rule: ComparisonRule, errors: F64, degrees: I64, roundoff: F64, groups: I64) -> F64:
    """The largest error [t], in the group of each tensor, of a run of A that exceeds its limit against the other runs;
    0 if none does. Tensors whose values say nothing in the other runs are left out."""
    rare = np.zeros(groups.max(initial=0) + 1)
    present = (~np.isnan(errors)).sum(axis=0)
    quantiles = _quantiles(rule, degrees, np.maximum(present - 1, 0))
    known = np.where(np.isnan(errors), 0.0, errors)
    for run in range(len(errors)):
        others = np.delete(known, run, axis=0).max(axis=0, initial=0.0)
        limit = rule.margin * np.maximum(quantiles * others, roundoff)
        is_rare = (known[run] > limit) & (others < UNINFORMATIVE) & (present > 1)
        np.maximum.at(rare, groups[is_rare], np.minimum(known[run][is_rare], 1.0))
    return rare[groups]
