"""Measured over predicted time of matrix products as a smooth function of their size.

The logarithm of the ratio is a Gaussian process over (log rows, log columns, log depth) with mean 0: near the measured
sizes it follows the measurements, smoothed, and far from them the ratio is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainyard.machine import ProductRatios

_F64 = npt.NDArray[np.float64]
_LENGTH = 2.0
"""Distance in the logarithm of a size over which ratios are similar: a factor of 7. Of 1 to 5, it predicted left-out
products of a CPU best."""
_NOISE, _LEAST_SIGNAL = 0.1, 0.05
"""Standard deviations of the logarithm: of the time of a measured product, and least one of the ratios."""


@dataclass(frozen=True, slots=True)
class RatioSurface:
    """`log_sizes`: (products, 3), of the measured products; `weights`: (products,), of each one's kernel."""

    log_sizes: _F64
    weights: _F64

    def at(self, rows: _F64, columns: _F64, depth: _F64) -> _F64:
        """Ratios of products of (rows x depth) by (depth x columns); all sizes positive, of shapes that broadcast."""
        log_sizes = np.stack(np.broadcast_arrays(np.log(rows), np.log(columns), np.log(depth)), axis=-1)
        return np.exp(_kernel(log_sizes, self.log_sizes) @ self.weights)


def surface(ratios: ProductRatios) -> RatioSurface:
    """The surface through the measured ratios."""
    log_sizes, logs = _logarithms(ratios)
    weights = np.linalg.solve(_covariance(log_sizes, logs), logs)
    return RatioSurface(log_sizes, np.asarray(_signal(logs) ** 2 * weights, np.float64))


def left_out_errors(ratios: ProductRatios) -> tuple[float, float]:
    """(error of the surface, error of the ratio 1): root mean square of the logarithm of measured over predicted time
    of each product, predicted from the others (Rasmussen and Williams 2006, equation 5.12)."""
    log_sizes, logs = _logarithms(ratios)
    inverse = np.linalg.inv(_covariance(log_sizes, logs))
    errors = inverse @ logs / np.diag(inverse)
    return float(np.sqrt(np.mean(errors**2))), float(np.sqrt(np.mean(logs**2)))


def _logarithms(ratios: ProductRatios) -> tuple[_F64, _F64]:
    """Logarithms of the sizes, (products, 3), and of the ratios, (products,)."""
    points = np.log(np.array(ratios.points, np.float64))
    return points[:, :3], points[:, 3]


def _signal(logs: _F64) -> float:
    """Standard deviation of the logarithms of the ratios."""
    return max(float(np.sqrt(np.mean(logs**2))), _LEAST_SIGNAL)


def _covariance(log_sizes: _F64, logs: _F64) -> _F64:
    """Covariance of the measured logarithms, (products, products)."""
    return _signal(logs) ** 2 * _kernel(log_sizes, log_sizes) + _NOISE**2 * np.eye(len(logs))


def _kernel(left: _F64, right: _F64) -> _F64:
    """Correlation of sizes `left` (..., 3) with each of `right` (products, 3)."""
    squares = np.sum((left[..., None, :] - right) ** 2, axis=-1)
    return np.exp(-squares / (2 * _LENGTH**2))
