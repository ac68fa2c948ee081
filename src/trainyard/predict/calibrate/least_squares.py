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
MAX_ITERATIONS, _DIFFERENCE_STEP = 100, 1e-4
"""Most iterations, and the step in a logarithm with which the Jacobian is computed as a difference quotient."""
_FIRST_DAMPING, _DAMPING_FACTOR, _MAX_DAMPING = 1e-3, 4, 1e12
CONVERGED_GAIN = 1e-9
"""Relative decrease of the cost below which an iteration is the last."""
_LARGEST_LOG_SHARE = -1e-6
"""Largest logarithm of a share, just below that of 1."""


def solve(
    assumed: Constants,
    names: Sequence[str],
    residuals: Residuals,
    prior: float | Sequence[float] = PRIOR,
    start: Constants | None = None,
    gain: float = CONVERGED_GAIN,
    iterations: int = MAX_ITERATIONS,
) -> Constants:
    """Fits the constants `names` with the Levenberg-Marquardt method, and returns all constants, the others as in
    `assumed`. `start`: the first estimate; default: `assumed`. `gain`, `iterations`: as `CONVERGED_GAIN` and
    `MAX_ITERATIONS`. Shares stay between 0 and 1, constants of `AT_LEAST_ONE` at 1 or more. `residuals`: function from
    constants to the errors that are squared; `prior`: standard deviation of the logarithms around the assumed values,
    of all or one per name. Each logarithm's distance from its assumed value, over `prior`, is one more error."""
    # Logarithms, [name], and their bounds.
    centre, first_logs = (
        np.log([getattr(constants, name) for name in names]) for constants in (assumed, start or assumed)
    )
    upper = np.array([_LARGEST_LOG_SHARE if name in SHARES else np.inf for name in names])
    lower = np.array([0.0 if name in AT_LEAST_ONE else -np.inf for name in names])

    def to_constants(logs: npt.NDArray[np.float64]) -> Constants:
        """All constants, those of `names` as the exponentials of `logs`."""
        return assumed._replace(**{name: float(np.exp(log)) for name, log in zip(names, logs, strict=True)})

    def weighted_errors(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Errors of the measurements, then of the prior, all in standard deviations."""
        return np.concatenate([residuals(to_constants(logs)), (logs - centre) / np.asarray(prior)])

    logs: npt.NDArray[np.float64] = np.clip(first_logs, lower, upper)
    damping: float = _FIRST_DAMPING
    errors = weighted_errors(logs)
    for _ in range(iterations):
        jacobian = np.stack(
            [
                (weighted_errors(logs + _DIFFERENCE_STEP * direction) - errors) / _DIFFERENCE_STEP
                for direction in np.eye(len(names))
            ],
            axis=1,
        )
        old_cost = errors @ errors
        while damping < _MAX_DAMPING:
            # Minimises |jacobian @ step + errors|^2 + damping * |step|^2 as one least-squares problem.
            damped_jacobian = np.concatenate([jacobian, np.sqrt(damping) * np.eye(len(names))])
            step = np.linalg.lstsq(damped_jacobian, np.concatenate([-errors, np.zeros(len(names))]), rcond=None)[0]
            trial: npt.NDArray[np.float64] = np.clip(logs + step, lower, upper)
            trial_errors = weighted_errors(trial)
            if trial_errors @ trial_errors < old_cost:
                logs, errors, damping = trial, trial_errors, damping / _DAMPING_FACTOR
                break
            damping *= _DAMPING_FACTOR
        if old_cost - errors @ errors < gain * (1 + old_cost):
            break
    return to_constants(logs)
