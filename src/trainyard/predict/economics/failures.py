"""Goodput of a long run under failures: the best checkpoint interval, and the fraction of the time spent training.

Failures are random, with a mean time between those of one device; each costs the work since the last checkpoint and a
restart. The expected time follows Daly (A higher order estimate of the optimum checkpoint interval, FGCS 22, 2006,
equation 20), and the best interval minimises it; the spread between runs is simulated.
"""

from __future__ import annotations

from math import exp, expm1, log1p, sqrt

import msgspec
import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.machine import Claim

_GOODPUT_QUANTILES = (0.1, 0.9)
"""Quantiles of the goodput of simulated runs that bound its range."""
_SECONDS_PER_HOUR = 3_600.0
DEVICE_MTBF = Claim(
    value=54 * 24 * 16_384 / 419,
    unit="h",
    date="2024-07",
    measured=True,
    source="Llama 3, arXiv:2407.21783, section 3.3.4: 419 unexpected interruptions in 54 days on 16,384 H100",
)
RESTART = Claim(value=600.0, unit="s", source="assumed: from a failure until all ranks train again")
SAVE = Claim(value=10.0, unit="s", source="assumed: a step's wait for an asynchronous checkpoint")


_MAX_RATIO = 20.0
"""Largest ratio of a restart, or of a checkpoint interval, to the mean time between failures: beyond it, fewer than 1
attempt in 10^8 succeeds."""
_LEAST_SHARE = 0.01
"""Least fraction of the time spent training of a run that advances."""
_NEWTON_STEPS = 60
"""Most steps to the best interval; it takes fewer than ten."""
_MEAN_SUFFICES_FAILURES = 1e9
"""Number of failures beyond which all runs take the mean time, to 1 in 10,000."""
_NORMAL_LIMIT_FAILURES = 1 << 10
"""Number of failures beyond which the sums of their costs are drawn from their normal limit."""


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """`share`: mean fraction of the elapsed time spent training; `low` to `high` contains 80 % of runs. `every_s`:
    seconds between checkpoints. `mtbf_s`: mean time between failures of the whole job. `save_s`: seconds that a
    checkpoint stops the training."""

    share: float
    low: float
    high: float
    every_s: float
    mtbf_s: float
    save_s: float = SAVE.value


def mean_time_between_failures(devices: float, mtbf: Claim = DEVICE_MTBF) -> float:
    """Mean time between failures of a job on `devices` devices, in seconds. `mtbf`: that of one device, in hours.
    Raises `BadInput` if either is not positive."""
    if devices <= 0 or mtbf.value <= 0:
        raise BadInput(f"{devices:g} devices that fail every {mtbf.value:g} h each: both must be positive.")
    return _SECONDS_PER_HOUR * mtbf.value / devices


def best_interval(mtbf_s: float, save_s: float) -> float:
    """Seconds of work between checkpoints that minimise `expected_seconds`. `mtbf_s`: mean time between failures of the
    job; `save_s`: seconds to save a checkpoint, without other work."""
    save = save_s / mtbf_s
    if save > _MAX_RATIO:
        return mtbf_s
    # The minimum is where excess(x) = x + save + log(1 - x) = 0; x = interval / mtbf. This function decreases and is
    # concave, so that Newton's method converges from above. Its value is not positive at both starting points.
    interval = min(sqrt(2 * save), -expm1(-1 - save))
    for _ in range(_NEWTON_STEPS):
        excess = interval + save + log1p(-interval)
        if excess >= 0:
            break
        interval += excess * (1 - interval) / interval
    return interval * mtbf_s


def expected_seconds(work_s: float, every_s: float, save_s: float, restart_s: float, mtbf_s: float) -> float:
    """Expected elapsed seconds of `work_s` seconds of work (Daly 2006, equation 20). `every_s`: seconds of work between
    checkpoints; `save_s`, `restart_s`: to save one, and to restart from it; `mtbf_s`: mean time between failures of the
    job."""
    return mtbf_s * exp(restart_s / mtbf_s) * expm1((every_s + save_s) / mtbf_s) * work_s / every_s


def goodput(
    work_s: float,
    devices: float,
    mtbf: Claim = DEVICE_MTBF,
    restart: Claim = RESTART,
    save: Claim = SAVE,
    draws: int = 400,
    seed: int = 0,
) -> Goodput:
    """Goodput of a run of `work_s` seconds without failures on `devices` devices, with the best checkpoint
    interval. `mtbf`: hours, of one device; `restart`, `save`: seconds; `draws`: simulated runs. Raises `BadInput` if
    the run would not advance."""
    mtbf_s = mean_time_between_failures(devices, mtbf)
    interval_s = best_interval(mtbf_s, save.value)
    longest_s = max(interval_s + save.value, restart.value)
    share = 0.0
    if longest_s <= _MAX_RATIO * mtbf_s:
        share = work_s / expected_seconds(work_s, interval_s, save.value, restart.value, mtbf_s)
    if share < _LEAST_SHARE:
        raise BadInput(
            f"{devices:,.10g} devices fail every {mtbf_s:.3g} s on average, but a restart takes {restart.value:g} s "
            f"and {interval_s + save.value:.3g} s pass between checkpoints: the run would not advance, since less than "
            f"{100 * _LEAST_SHARE:g} % of the time would be training.",
            "Plan for fewer devices, correct the times of failures and checkpoints, or leave out --tokens.",
        )
    if work_s / mtbf_s * exp(2 * longest_s / mtbf_s) > _MEAN_SUFFICES_FAILURES:
        return Goodput(share=share, low=share, high=share, every_s=interval_s, mtbf_s=mtbf_s, save_s=save.value)
    elapsed_s = _draw_elapsed(work_s, interval_s, save.value, restart.value, mtbf_s, draws, seed)
    low, high = np.quantile(work_s / elapsed_s, _GOODPUT_QUANTILES)
    return Goodput(
        share=share,
        low=min(float(low), share),
        high=max(float(high), share),
        every_s=interval_s,
        mtbf_s=mtbf_s,
        save_s=save.value,
    )


def _draw_elapsed(
    work_s: float, every_s: float, save_s: float, restart_s: float, mtbf_s: float, draws: int, seed: int
) -> np.ndarray:
    """Elapsed seconds, [draw], of `draws` simulated runs of `work_s` seconds of work: each segment, `every_s` of work
    and the checkpoint after it, is repeated until it completes without a failure. The arguments in seconds are those of
    `expected_seconds`; `seed`: of the random numbers."""
    random = np.random.default_rng(seed)
    if work_s < every_s:  # a single segment of all work, with the part of a checkpoint that the mean time has
        every_s, save_s = work_s, save_s * work_s / every_s
    segments = work_s / every_s
    failure_probability = -expm1(-(every_s + save_s) / mtbf_s)  # per segment
    # The failures of a whole number of segments are drawn and then scaled to the exact number.
    whole_segments = int(segments)
    failures_of_run = random.negative_binomial(whole_segments, 1 - failure_probability, draws)
    # Time of a failed attempt until the failure: exponential, truncated at the segment's length.
    lost_s = _draw_truncated_sums(random, failures_of_run, mtbf_s, every_s + save_s)
    restart_total_s = _draw_restarts(random, failures_of_run, restart_s, mtbf_s)
    return (
        segments * (every_s + save_s) + lost_s * segments / whole_segments + restart_total_s * segments / whole_segments
    )


def _draw_truncated_sums(
    random: np.random.Generator, counts: npt.NDArray[np.int64], mean_s: float, limit_s: float
) -> npt.NDArray[np.float64]:
    """Draws the sums of `counts` exponential times in seconds of mean `mean_s`, each truncated at `limit_s`."""
    if counts.max() <= _NORMAL_LIMIT_FAILURES:
        # By inversion: the distribution function is (1 - exp(-t / mean)) / (1 - exp(-limit / mean)).
        times_s = -mean_s * np.log1p(random.random(int(counts.sum())) * expm1(-limit_s / mean_s))
        return np.bincount(np.repeat(np.arange(len(counts)), counts), times_s, len(counts)).astype(np.float64)
    # Mean and variance of the truncated distribution: mean - limit / growth, mean^2 - limit^2 (growth + 1) / growth^2.
    growth = expm1(limit_s / mean_s)
    variance = max(0.0, mean_s**2 - limit_s**2 * (growth + 1) / growth**2)
    return random.normal(counts * (mean_s - limit_s / growth), np.sqrt(counts * variance))


def _draw_restarts(
    random: np.random.Generator, counts: npt.NDArray[np.int64], restart_s: float, mtbf_s: float
) -> npt.NDArray[np.float64]:
    """Draws the total seconds of `counts` restarts of `restart_s` each. A failure during a restart repeats it; the job
    fails every `mtbf_s` seconds on average."""
    failed = np.where(counts > 0, random.negative_binomial(np.maximum(counts, 1), exp(-restart_s / mtbf_s)), 0)
    return counts * restart_s + _draw_truncated_sums(random, failed, mtbf_s, restart_s)
