"""Synthetic features, ids and clicks of a learnable model, as functions of (seed, step, index). Needs no torch.

Random numbers are a counter passed through the finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable
pseudorandom number generators", figure 17): vectorized over a batch, with independent draws.

Shapes: B samples, F dense features, T tables, I ids of a sample over all tables.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from math import ceil, expm1, gcd, log, log1p
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.train.recommender.recommender_sizes import Dlrm

Keys = NDArray[np.uint64]
Reals = NDArray[np.float64]

SIGNAL = 2.0
"""Standard deviation of the dense features' part of the logit, and of the ids' part if none repeats."""

_COUNTER_STEP = np.uint64(0x9E3779B97F4A7C15)
"""Increment of SplitMix64's counter."""
_UNIT_DEVIATION = 12**0.5
"""Factor that gives uniform numbers of width 1 a standard deviation of 1."""
_SINGLE_IDS, _RANGE_RATIO = 64, 1.05
"""`expected_distinct`: number of ids that have a range each; ratio of the ends of the others."""
_ZERO_EXPONENT = 1e-9
"""Exponents closer to zero than this are taken as zero: the integral is then a logarithm."""


class ClickBatch(NamedTuple):
    """Dense features (B, F) float32, ids (B, I) int64 by table, clicks (B) float32: 0 or 1."""

    dense: NDArray[np.float32]
    ids: NDArray[np.int64]
    clicks: NDArray[np.float32]


class Planted:
    """Generates clicks with probability sigmoid(u . dense + sum of v[table, id]); u and v depend on the seed only."""

    def __init__(self, sizes: Dlrm, seed: int) -> None:
        """Draws the planted model from the seed: weights of the F dense features, and for each of the I ids of a sample
        its table, that table's rows, the stride that spreads frequent ids over the table, and the scale of its effect
        on the logit."""
        self.sizes, self.seed = sizes, seed
        weights = _uniform(_key("weights", seed), sizes.dense)
        self.weights_F = (weights - 0.5) * _UNIT_DEVIATION * SIGNAL / sizes.dense**0.5
        self.rows_I = np.repeat(sizes.rows, sizes.hots)
        self.tables_I = np.repeat(np.arange(len(sizes.rows), dtype=np.uint64), sizes.hots)
        self.strides_I = np.repeat([_coprime(seed, table, rows) for table, rows in enumerate(sizes.rows)], sizes.hots)
        self.effect_scales_I = SIGNAL / (np.repeat(sizes.hots, sizes.hots) * len(sizes.rows)) ** 0.5

    def batch(self, step: int, indices: range) -> ClickBatch:
        """Samples `indices` of a step: normal features (B, F), ids (B, I) by Zipf's law, and clicks (B) drawn with the
        planted model's probability. The same for the same seed."""
        sizes = self.sizes
        samples_B = mix_bits(
            mix_bits(_key("sample", self.seed) + np.uint64(step)) + np.arange(*_ends(indices), dtype=np.uint64)
        )
        uniform_numbers = _uniform(samples_B[:, None], 2 * sizes.dense + sizes.ids + 1)
        uniform_1, uniform_2, uniform_ids, uniform_click = np.split(
            uniform_numbers, np.cumsum([sizes.dense, sizes.dense, sizes.ids]), axis=1
        )
        dense_BF = np.sqrt(-2 * np.log(uniform_1)) * np.cos(2 * np.pi * uniform_2)  # Box and Muller 1958
        # Spread frequent ids over a table, since neighbouring rows are on one rank.
        ids_BI = zipf(uniform_ids, self.rows_I, sizes.skew) * self.strides_I % self.rows_I
        logits_B = dense_BF @ self.weights_F + self._effects(ids_BI) @ self.effect_scales_I
        clicks_B = uniform_click[:, 0] < 1 / (1 + np.exp(-logits_B))
        return ClickBatch(dense=dense_BF.astype(np.float32), ids=ids_BI, clicks=clicks_B.astype(np.float32))

    def _effects(self, ids_BI: NDArray[np.int64]) -> Reals:
        """The effect v of each id, uniform with standard deviation 1."""
        keys_I = mix_bits(_key("effect", self.seed) + self.tables_I)
        return (_to_unit_interval(mix_bits(keys_I + ids_BI.astype(np.uint64))) - 0.5) * _UNIT_DEVIATION


def zipf(uniform: Reals, rows: NDArray[np.int64], skew: float) -> NDArray[np.int64]:
    """Zipf-distributed ids from 0 (most frequent) to rows - 1. `uniform` (..., I): uniform numbers in (0, 1); `rows`
    (I,): of each id's table. The density is x^-skew on [1, rows + 1), and x is rounded down."""
    exponent, log_ranges = 1 - skew, np.log1p(rows)
    if abs(exponent) < _ZERO_EXPONENT:
        x = np.exp(uniform * log_ranges)
    else:
        x = (1 + uniform * np.expm1(exponent * log_ranges)) ** (1 / exponent)
    return np.clip(x.astype(np.int64) - 1, 0, rows - 1)


def hot_share(rows: int, skew: float, hot: int) -> float:
    """The expected fraction (0 to 1) of the `hot` most frequent ids in all lookups of a table with `rows` rows."""
    exponent = 1 - skew

    def mass_below(x: float) -> float:  # integral of x^-skew from 1 to x, the density in `zipf`
        return log(x) if abs(exponent) < _ZERO_EXPONENT else (x**exponent - 1) / exponent

    return mass_below(min(hot, rows) + 1) / mass_below(rows + 1)


def expected_distinct(rows: int, skew: float, draws: int) -> float:
    """The expected number of distinct ids in `draws` lookups of a table with `rows` rows. Ids beyond the most frequent
    ones are grouped into ranges of nearly equal probability."""
    edges = [*range(min(rows, _SINGLE_IDS) + 1)]
    while edges[-1] < rows:
        edges.append(min(rows, ceil(edges[-1] * _RANGE_RATIO)))
    distinct = 0.0
    for begin, end in pairwise(edges):
        probability = (hot_share(rows, skew, end) - hot_share(rows, skew, begin)) / (end - begin)
        distinct += (end - begin) * (-expm1(draws * log1p(-probability)) if probability < 1 else 1.0)
    return distinct


def mix_bits(keys: Keys) -> Keys:
    """Mixes the bits of each number, so that every output bit depends on all input bits: the finalizer of SplitMix64,
    with its shifts and multipliers."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def _key(purpose: str, seed: int) -> Keys:
    """A 64-bit key (1,) derived from the purpose of the draws and the seed."""
    digest = hashlib.blake2b(purpose.encode() + seed.to_bytes(8, "little"), digest_size=8).digest()
    return np.frombuffer(digest, np.dtype("<u8")).astype(np.uint64)


def _uniform(keys: Keys, draws: int) -> Reals:
    """`draws` independent uniform numbers in (0, 1) for each key: (..., draws) for keys (..., 1)."""
    return _to_unit_interval(mix_bits(keys + _COUNTER_STEP * np.arange(1, draws + 1, dtype=np.uint64)))


def _to_unit_interval(bits: Keys) -> Reals:
    """Converts 64 random bits to a number in (0, 1): the upper 53 bits, as many as a float64 has, plus a half."""
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _coprime(seed: int, table: int, rows: int) -> int:
    """A stride for `table`, derived from the seed and coprime to `rows`: multiplying by it modulo `rows` permutes the
    ids."""
    stride = int(mix_bits(_key("turn", seed) + np.uint64(table))[0] % np.uint64(rows))
    while gcd(stride, rows) != 1:
        stride += 1
    return stride


def _ends(indices: range) -> tuple[int, int, int]:
    """Start, stop and step of a range."""
    return indices.start, indices.stop, indices.step
