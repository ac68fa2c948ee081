"""Student's t distribution with `df` degrees of freedom, without a dependency on scipy (which the tests compare with).

The upper tail is P(T > t) = I_x(df / 2, 1 / 2) / 2 with x = df / (df + t^2), for t >= 0, where I is the regularised
incomplete beta function (Abramowitz and Stegun 26.7.1).
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, lgamma, log

_MIN_DENOMINATOR = 1e-300


@lru_cache(maxsize=256)
def quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p, for 0 < p < 1.

    By bisection on the upper tail, whose small values keep their digits; 200 halvings exhaust the digits of a float.
    """
    if p == 0.5:
        return 0.0
    tail, low, high = min(p, 1 - p), 0.0, 1.0
    while _upper_tail(high, df) > tail:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _upper_tail(middle, df) > tail else (low, middle)
    return high if p > 0.5 else -high


def two_sided_p(t: float, df: float) -> float:
    """P(|T| >= |t|)."""
    return 2 * _upper_tail(abs(t), df)


def _upper_tail(t: float, df: float) -> float:
    return 0.0 if t == inf else 0.5 * _regularised_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t))


def _regularised_beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function I_x(a, b) by its continued fraction (DLMF 8.17.22).

    The fraction converges quickly for x below (a + 1) / (a + b + 2); above, I_x(a, b) = 1 - I_(1-x)(b, a) is used.
    `rest` is 1 - x, with its own digits.
    """
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(rest))
    if x > (a + 1) / (a + b + 2):
        return 1 - front * _continued_fraction(b, a, rest) / b
    return front * _continued_fraction(a, b, x) / a


def _continued_fraction(a: float, b: float, x: float) -> float:
    """1 / (1 + d1 / (1 + d2 / (1 + ...))), by Lentz's method (Thompson and Barnett 1986).

    `factor` is the coefficient d of each term (DLMF 8.17.23 and 8.17.24, odd and even terms); c and d are the ratios of
    successive numerators and denominators, as the method calls them.
    """
    value, c, d = 1.0, 1.0, 0.0
    for term in range(1, 2000):
        m = term // 2
        if term % 2:
            factor = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            factor = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _avoid_zero(1 + factor * d)
        c = _avoid_zero(1 + factor / c)
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return 1 / value


def _avoid_zero(x: float) -> float:
    return x if abs(x) > _MIN_DENOMINATOR else _MIN_DENOMINATOR
