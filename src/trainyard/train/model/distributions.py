"""The distributions of initial weights, and values of them for random words.

Beyond integer operations, only additions, subtractions, multiplications, divisions and square roots of float32 are
used, each in an operation of its own. IEEE 754 rounds these correctly, so values do not depend on the device, on the
number of values or on vector instructions; `torch.log` and `torch.cos` differ by an ulp between devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, pi
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor


class Constant(NamedTuple):
    """All values are `value`."""

    value: float


class Uniform(NamedTuple):
    """Uniform between `-bound` and `bound`."""

    bound: float


class Normal(NamedTuple):
    """Normal with mean 0 and standard deviation `deviation`. With a `cutoff`, truncated to at most `cutoff` times
    `deviation` in magnitude, which reduces the standard deviation of the values."""

    deviation: float
    cutoff: float | None = None


Distribution: TypeAlias = Constant | Uniform | Normal

RandomWords: TypeAlias = Callable[[int], Sequence[Tensor]]
"""Attempt number -> four words of each of N blocks, (N) each, int64 in [0, 2**32). Attempts are independent."""

_LOG_SERIES = (2.0, 2 / 3, 2 / 5, 2 / 7, 2 / 9)
"""log((1 + s) / (1 - s)) / s in powers of s**2. The next term is less than 2**-27 of the sum for |s| < 0.172."""
_SINE_SERIES = (1.0, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880)
_COSINE_SERIES = (1.0, -1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800)
_SQRT_HALF_BITS = 0x3F3504F3
"""The bits of sqrt(1/2) as a float32."""
_FRACTION_BITS = 23
_MAX_ATTEMPTS = 64
"""Attempts to draw a value inside the cutoff. For a cutoff of 1, the probability that all fail is 1e-32."""


def sample(distribution: Uniform | Normal, random_words: RandomWords) -> Tensor:
    """Values (N, 4), float32: four of each block. A value is a function of its block only."""
    if isinstance(distribution, Uniform):
        return _uniform(random_words(0), distribution.bound)
    values = _normal(random_words(0), distribution.deviation)
    if distribution.cutoff is None:
        return values
    limit = distribution.cutoff * distribution.deviation
    for attempt in range(1, _MAX_ATTEMPTS):
        is_outside = values.abs() > limit
        if not is_outside.any():
            break
        values = torch.where(is_outside, _normal(random_words(attempt), distribution.deviation), values)
    return values.clamp_(-limit, limit)


def _uniform(words: Sequence[Tensor], bound: float) -> Tensor:
    """Uniform values (N, 4) of words (N): multiples of 2**-23 times `bound`, in [-bound, bound)."""
    values = torch.stack([((word >> 8) - (1 << 23)).to(torch.float32) for word in words], dim=1)
    return values.mul_(bound * 2.0**-23)


def _normal(words: Sequence[Tensor], deviation: float) -> Tensor:
    """Normal values (N, 4) of words (N), by Box and Muller (1958): words 0 and 1 give values 0 and 1, words 2 and 3 the
    others. At most 6.66 times `deviation` in magnitude."""
    radius = _minus_two_log(torch.stack((words[0], words[2]))).sqrt_().mul_(deviation)  # (2, N)
    cosine, sine = _point_on_circle(torch.stack((words[1], words[3])).to(torch.int32))
    values = radius.new_empty(radius.shape[1], 2, 2)  # (block, pair, value of the pair)
    values[:, :, 0] = cosine.mul_(radius).T
    values[:, :, 1] = sine.mul_(radius).T
    return values.flatten(1)


def _minus_two_log(word: Tensor) -> Tensor:
    """-2 log(u) for the uniform number u = (2 floor(word / 2) + 1) / 2**32, rounded to float32, in (0, 1]."""
    uniform = (word >> 1).to(torch.int32).to(torch.float32).mul_(2.0).add_(1.0).mul_(2.0**-32)
    bits = uniform.view(torch.int32)
    exponent = bits - _SQRT_HALF_BITS
    exponent >>= _FRACTION_BITS  # u = mantissa * 2**exponent, the mantissa between sqrt(1/2) and sqrt(2)
    mantissa = (bits - (exponent << _FRACTION_BITS)).view(torch.float32)
    ratio = (mantissa - 1.0).div_(mantissa.add_(1.0))
    log_mantissa = _polynomial(ratio.square(), _LOG_SERIES).mul_(ratio)
    return exponent.to(torch.float32).mul_(log(2.0)).add_(log_mantissa).mul_(-2.0)


def _point_on_circle(word: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of a random angle. `word`: random bits as int32.

    The low 30 bits are an angle between -pi/4 and pi/4; of that arc, bit 31 selects the mirror image with a negative
    cosine, and bit 30 exchanges cosine and sine, so that the four arcs make up the circle.
    """
    angle = ((word & 0x3FFFFFFF) - (1 << 29)).to(torch.float32).mul_(pi / 2 * 2.0**-30)
    square = angle.square()
    sine = _polynomial(square, _SINE_SERIES).mul_(angle)
    cosine = _polynomial(square, _COSINE_SERIES)
    sine_bits, cosine_bits = sine.view(torch.int32), cosine.view(torch.int32)
    cosine_bits ^= word & -(1 << 31)
    # On the bits, since `torch.where` is several times slower on a CPU. Shifting bit 30 to the sign and back gives 0 or
    # -1, whose bits are all ones.
    exchanged_bits = (cosine_bits ^ sine_bits) & ((word << 1) >> 31)
    cosine_bits ^= exchanged_bits
    sine_bits ^= exchanged_bits
    return cosine, sine


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """The polynomial with the `coefficients` of ascending powers, by Horner's rule, in a new tensor."""
    value = torch.mul(x, coefficients[-1])
    for coefficient in coefficients[-2:0:-1]:
        value.add_(coefficient).mul_(x)
    return value.add_(coefficients[0])
