"""Fit constants to measurements: least squares in their logarithms, with a prior around their assumed values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from trainyard.predict.inputs.constants import AT_LEAST_ONE, SHARES, Constants

Residuals = Callable[[Constants], npt.NDArray[np.float64]]
"""Constants -> residual of each prediction, in units of its expected standard deviation."""
PRIOR = 0.4
"""Standard deviation of a constant's logarithm around its assumed value."""
_ROUNDS, _STEP, _STUCK = 100, 1e-4, 1e12


def solve(
    assumed: Constants, names: Sequence[str], residuals: Residuals, prior: float | Sequence[float] = PRIOR
) -> Constants:
    """Fit the constants `names` with the Levenberg-Marquardt method. Shares stay between 0 and 1, constants of
    `AT_LEAST_ONE` at 1 or more. `prior`: standard deviation of all, or one per name."""
    start = np.log([getattr(assumed, name) for name in names])
    most = np.array([-1e-6 if name in SHARES else np.inf for name in names])
    least = np.array([0.0 if name in AT_LEAST_ONE else -np.inf for name in names])

    def constants(logs: npt.NDArray[np.float64]) -> Constants:
        return assumed._replace(**{name: float(np.exp(log)) for name, log in zip(names, logs, strict=True)})

    def errors(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.concatenate([residuals(constants(logs)), (logs - start) / np.asarray(prior)])

    logs: npt.NDArray[np.float64] = np.clip(start, least, most)
    damping = 1e-3
    current = errors(logs)
    for _ in range(_ROUNDS):
        slopes = np.stack(
            [(errors(logs + _STEP * direction) - current) / _STEP for direction in np.eye(len(names))], axis=1
        )
        before = current @ current
        while damping < _STUCK:
            damped = np.concatenate([slopes, np.sqrt(damping) * np.eye(len(names))])
            step = np.linalg.lstsq(damped, np.concatenate([-current, np.zeros(len(names))]), rcond=None)[0]
            trial: npt.NDArray[np.float64] = np.clip(logs + step, least, most)
            trial_errors = errors(trial)
            if trial_errors @ trial_errors < before:
                logs, current, damping = trial, trial_errors, damping / 4
                break
            damping *= 4
        if before - current @ current < 1e-9 * (1 + before):
            break
    return constants(logs)
