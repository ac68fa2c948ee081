"""Constants that fit what was measured: least squares in their logarithms, each held near what is assumed of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from trainyard.predict.inputs.constants import AT_LEAST_ONE, SHARES, Constants

Off = Callable[[Constants], npt.NDArray[np.float64]]
"""Constants -> how far each prediction is off, in units of what may be expected."""
PRIOR = 0.4
"""How far a constant may be from what is assumed: the standard deviation of its logarithm."""
_ROUNDS, _STEP, _STUCK = 100, 1e-4, 1e12


def solve(assumed: Constants, names: Sequence[str], off: Off, prior: float | Sequence[float] = PRIOR) -> Constants:
    """By Levenberg and Marquardt's method. Shares stay between 0 and 1, and what cannot be less than 1 is not. `prior`:
    of all, or one a name."""
    start = np.log([getattr(assumed, name) for name in names])
    most = np.array([-1e-6 if name in SHARES else np.inf for name in names])
    least = np.array([0.0 if name in AT_LEAST_ONE else -np.inf for name in names])

    def made(logs: npt.NDArray[np.float64]) -> Constants:
        return assumed._replace(**{name: float(np.exp(log)) for name, log in zip(names, logs, strict=True)})

    def errors(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.concatenate([off(made(logs)), (logs - start) / np.asarray(prior)])

    logs: npt.NDArray[np.float64] = np.clip(start, least, most)
    damping = 1e-3
    now = errors(logs)
    for _ in range(_ROUNDS):
        slopes = np.stack([(errors(logs + _STEP * one) - now) / _STEP for one in np.eye(len(names))], axis=1)
        before = now @ now
        while damping < _STUCK:
            damped = np.concatenate([slopes, np.sqrt(damping) * np.eye(len(names))])
            step = np.linalg.lstsq(damped, np.concatenate([-now, np.zeros(len(names))]), rcond=None)[0]
            there: npt.NDArray[np.float64] = np.clip(logs + step, least, most)
            then = errors(there)
            if then @ then < before:
                logs, now, damping = there, then, damping / 4
                break
            damping *= 4
        if before - now @ now < 1e-9 * (1 + before):
            break
    return made(logs)
