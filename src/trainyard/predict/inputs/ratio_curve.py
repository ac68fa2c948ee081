"""Measured over predicted time of a collective as a function of its size, interpolated between probed sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainyard.machine import RateCurve

_F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RatioCurve:
    """Logarithms of sizes in bytes, increasing, and of the ratio at each: both of shape (sizes,)."""

    log_sizes: _F64
    log_ratios: _F64

    def at(self, size_bytes: _F64) -> _F64:
        """Ratios at sizes in bytes; constant beyond both ends."""
        return np.exp(np.interp(np.log(np.maximum(size_bytes, 1.0)), self.log_sizes, self.log_ratios))


def ratio_curve(curve: RateCurve) -> RatioCurve:
    """The curve through the (bytes, ratio) of a machine file."""
    logs = np.log(np.array(curve.points, np.float64))
    return RatioCurve(logs[:, 0], logs[:, 1])


def left_out_errors(curve: RateCurve) -> tuple[float, float]:
    """(error of the curve, error of the ratio 1): median distance of the logarithm of measured over predicted time, at
    each of at least two sizes, predicted from the other sizes. One size of five may have been disturbed."""
    whole = ratio_curve(curve)
    errors = [
        log_ratio - np.interp(log_size, np.delete(whole.log_sizes, row), np.delete(whole.log_ratios, row))
        for row, (log_size, log_ratio) in enumerate(zip(whole.log_sizes, whole.log_ratios, strict=True))
    ]
    return float(np.median(np.abs(errors))), float(np.median(np.abs(whole.log_ratios)))
