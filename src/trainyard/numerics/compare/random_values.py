"""Distinguishes random numbers that differ from faults.

Generators of other devices, and kernels that draw in another order, give other numbers of the same distribution for the
same seed: initial weights and dropout masks of a CPU and an accelerator differ. Two results of the same operation are
other draws if their means and norms are those of one distribution, and if they are not correlated, as they would be for
the same numbers with another standard deviation, or if a part of the numbers was changed.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod, sqrt

import numpy as np

from trainyard.numerics.compare.align_tensors import Tensors
from trainyard.numerics.compare.data_flow import DataFlow
from trainyard.numerics.compare.logical_tensors import LogicalKey, is_initial_weight
from trainyard.numerics.tensor_record import BUCKETS, TensorRecord

_DRAWING = frozenset(
    f"aten.{name}"
    for name in (
        *("normal", "normal_", "normal_functional", "uniform", "uniform_", "bernoulli", "bernoulli_", "random"),
        *("random_", "exponential", "exponential_", "log_normal", "log_normal_", "cauchy", "cauchy_", "geometric"),
        *("geometric_", "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm"),
        *("multinomial", "poisson", "binomial", "native_dropout", "_fused_dropout", "rrelu_with_noise"),
        *("rrelu_with_noise_", "_standard_gamma", "_sample_dirichlet"),
    )
)
_MAY_DRAW = frozenset(
    f"aten.{name}"
    for name in (
        *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
        *("_scaled_dot_product_cudnn_attention", "_flash_attention_forward", "_efficient_attention_forward"),
        *("_cudnn_rnn", "miopen_rnn"),
    )
)
"""Operations that have a dropout of their own. They count as drawing if the other side draws."""
_DEVIATIONS = 6.0
"""Standard deviations by which the means or the squared norms of two draws of one distribution differ at most."""
_SQUARES = 5.0
"""Relative variance of the square of an element: 2 for normal numbers, 5 for exponential ones."""
_SCALED = 0.999
"""Cosine from which two tensors are the same numbers, scaled, whatever their means."""


def drawn_from(records: Tensors, key: LogicalKey, correct: Collection[LogicalKey]) -> LogicalKey | None:
    """The nearest tensor with random numbers that are not `correct` among `key` and those from which it was computed;
    None if there is none. Initial weights count as random; the result of an operation that may draw is returned only if
    there is no other."""
    flow = DataFlow(records, records[key].step)
    sources = [source for source in (key, *flow.sources(key, correct)) if source not in correct]
    drawn = (source for source in sources if has_random_values(source) and not _has_mask(source, correct))
    may_draw = (source for source in sources if source.tensor.operation in _MAY_DRAW)
    return next(drawn, next(may_draw, None))


def has_random_values(key: LogicalKey) -> bool:
    """Whether a tensor is an initial weight, or the result of an operation that always draws random numbers."""
    return key.tensor.operation in _DRAWING or is_initial_weight(key.tensor)


def _has_mask(key: LogicalKey, correct: Collection[LogicalKey]) -> bool:
    """Whether a dropout has the mask that it should have, which is its second output."""
    return LogicalKey(key.tensor._replace(output=1), key.rank) in correct


def are_other_draws(a: TensorRecord, b: TensorRecord) -> bool:
    """Whether two results of a random operation may be draws of one distribution, and not the same numbers scaled."""
    return _is_same_distribution(a, b) and not _is_correlated(a, b)


def _is_same_distribution(a: TensorRecord, b: TensorRecord) -> bool:
    elements = max(1, prod(a.shape))
    squares = [record.norm**2 / elements for record in (a, b)]
    variance = max(square - record.mean**2 for square, record in zip(squares, (a, b)))
    of_means = _DEVIATIONS * sqrt(2 * max(variance, 0.0) / elements)
    of_squares = _DEVIATIONS * sqrt(2 * _SQUARES / elements) * max(squares)
    return abs(a.mean - b.mean) <= of_means and abs(squares[0] - squares[1]) <= of_squares


def _is_correlated(a: TensorRecord, b: TensorRecord) -> bool:
    """Whether the cosine of the sketches, that of the tensors, exceeds that of independent numbers with these means."""
    first, second = (np.frombuffer(record.sketch, "<f8") for record in (a, b))
    elements = max(1, prod(a.shape))
    if len(first) != len(second) or not len(first) or not (first.any() and second.any()):
        return False
    cosine = float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))
    of_means = abs(a.mean * b.mean) * elements / (a.norm * b.norm) if a.norm and b.norm else 0.0
    return abs(cosine) >= min(_SCALED, of_means + _DEVIATIONS / sqrt(min(BUCKETS, elements)))


def describe_draws(a: TensorRecord, b: TensorRecord) -> str:
    """The random operations of both sides with their lines of code: `aten.bernoulli_ (train.py:12) in A and ...`."""
    of_a, of_b = map(_describe, (a, b))
    return of_a if of_a == of_b else f"{of_a} in A and {of_b} in B"


def _describe(record: TensorRecord) -> str:
    name = record.operation or f"the initial values of {record.module}.{record.name}"
    return f"{name} ({record.location})" if record.location else name
