"""Sketches and hashes computed element by element, in Python."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import shake_256
from math import isfinite

from trainyard.numerics.record.positional_hash import MULTIPLIERS
from trainyard.numerics.record.sketch import PERIOD, SIGNS
from trainyard.numerics.tensor_record import BUCKETS

_WORD = 1 << 64


def sketch(values: Iterable[tuple[int, float]]) -> list[float]:
    """The sketch of (logical index, value)."""
    buckets = [0.0] * BUCKETS
    for index, value in values:
        if isfinite(value):
            buckets[index % BUCKETS] += _sign(index) * value
    return buckets


def hash_of(lanes: Iterable[tuple[int, int]]) -> int:
    """The hash of (number of the lane, its bits as an integer)."""
    return sum(bits * _multiplier(number) for number, bits in lanes) % _WORD


def _sign(index: int) -> int:
    at, repetition = index % SIGNS, index // PERIOD
    negative = _signs()[at // 8] >> (7 - at % 8) & 1
    if repetition:
        negative ^= _scramble(repetition * BUCKETS + index % BUCKETS) >> 63
    return -1 if negative else 1


def _multiplier(lane: int) -> int:
    at = 8 * (lane % MULTIPLIERS)
    number = int.from_bytes(_multipliers()[at : at + 8], "little") | 1
    return number * (_scramble(lane // MULTIPLIERS) | 1)


@cache
def _signs() -> bytes:
    return shake_256(b"signs of sketches").digest(-(-SIGNS // 8))


@cache
def _multipliers() -> bytes:
    return shake_256(b"multipliers of hashes").digest(8 * MULTIPLIERS)


def _scramble(number: int) -> int:
    number = (number + 1) * 0x9E3779B97F4A7C15 % _WORD
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % _WORD
    number = (number ^ number >> 27) * 0x94D049BB133111EB % _WORD
    return number ^ number >> 31
