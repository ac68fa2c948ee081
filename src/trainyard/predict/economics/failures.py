"""What failures take from a long run: how often to save, and the share of the time that trains.

Failures come at random, at a rate a node and day; each costs the work since the last checkpoint and a restart. The best
interval and the expected time are Daly's (A higher order estimate of the optimum checkpoint interval, FGCS 22, 2006,
equations 20 and 37); how far a run may be off the mean is drawn.
"""

from __future__ import annotations

from math import exp, expm1, sqrt

import msgspec
import numpy as np

from trainyard.errors import BadInput
from trainyard.machine import Claim

_DAY_S = 86_400.0
RATE = Claim(
    value=419 / 54 / 2048,
    unit="1/(node day)",
    date="2024-07",
    measured=True,
    source="Llama 3, arXiv:2407.21783, section 3.3.4: 419 unexpected interruptions in 54 days on 2,048 nodes of 8 H100",
)
RESTART = Claim(value=600.0, unit="s", source="assumed: from a failure until all ranks train again")
SAVE = Claim(value=10.0, unit="s", source="assumed: a step's wait for an asynchronous checkpoint")


_HOPELESS = 20.0
"""Largest ratio of a restart, or of a checkpoint interval, to the mean time between failures: beyond it, fewer than 1
attempt in 10^8 succeeds."""
_AVERAGED = 1e9
"""Failures of a run beyond which all runs take the mean time, to 1 in 10,000."""
_MANY = 1 << 14
"""Failures beyond which the sum of their costs is drawn from its normal limit, not one by one."""


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """`share` of the elapsed time that trains, its mean; `low` and `high` hold four of five runs. `every_s`: seconds
    between checkpoints. `mtbf_s`: mean time between failures of the whole job."""

    share: float
    low: float
    high: float
    every_s: float
    mtbf_s: float


def between_failures(nodes: int, rate: Claim = RATE) -> float:
    """Seconds between failures of a job on so many nodes."""
    if nodes < 1 or rate.value <= 0:
        raise BadInput(f"{nodes} nodes that fail {rate.value:g} times a day each say nothing of failures.")
    return _DAY_S / (rate.value * nodes)


def best_interval(mtbf_s: float, save_s: float) -> float:
    """Seconds of work between checkpoints that lose the least time (Daly 2006, equation 37)."""
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = save_s / (2 * mtbf_s)
    return max(sqrt(2 * save_s * mtbf_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - save_s, save_s)


def expected(work_s: float, every_s: float, save_s: float, restart_s: float, mtbf_s: float) -> float:
    """Seconds that so much work is expected to take (Daly 2006, equation 20)."""
    return mtbf_s * exp(restart_s / mtbf_s) * expm1((every_s + save_s) / mtbf_s) * work_s / every_s


def goodput(
    work_s: float,
    nodes: int,
    rate: Claim = RATE,
    restart: Claim = RESTART,
    save: Claim = SAVE,
    draws: int = 400,
    seed: int = 0,
) -> Goodput:
    """Of a run that would train for `work_s` seconds without a failure, saved as often as is best."""
    mtbf = between_failures(nodes, rate)
    every = best_interval(mtbf, save.value)
    longest = max(every + save.value, restart.value)
    if longest > _HOPELESS * mtbf:
        raise BadInput(
            f"{nodes:,} nodes fail every {mtbf:.3g} s in the mean, but a restart takes {restart.value:g} s and "
            f"{every + save.value:.3g} s pass between checkpoints: the run would not advance.",
            "Plan for fewer devices, or leave out --tokens to plan the step alone.",
        )
    mean = expected(work_s, every, save.value, restart.value, mtbf)
    share = work_s / mean
    if work_s / mtbf * exp(2 * longest / mtbf) > _AVERAGED:
        return Goodput(share=share, low=share, high=share, every_s=every, mtbf_s=mtbf)
    drawn = _drawn(work_s, every, save.value, restart.value, mtbf, draws, seed)
    low, high = np.quantile(work_s / drawn, (0.1, 0.9))
    return Goodput(share=share, low=min(float(low), share), high=max(float(high), share), every_s=every, mtbf_s=mtbf)


def _drawn(
    work_s: float, every_s: float, save_s: float, restart_s: float, mtbf_s: float, draws: int, seed: int
) -> np.ndarray:
    """Elapsed seconds of so many runs: each segment is tried until no failure falls into it."""
    random = np.random.default_rng(seed)
    segments = max(1.0, work_s / every_s)
    fails = -expm1(-(every_s + save_s) / mtbf_s)  # a segment's
    whole = int(segments)
    failed = random.negative_binomial(whole, 1 - fails, draws)
    # What a failed try had done when it failed: exponential, cut at the segment's length.
    lost = np.array([_cut_sum(random, int(count), mtbf_s, every_s + save_s) for count in failed])
    restarts = np.array([_restarting(random, int(count), restart_s, mtbf_s) for count in failed])
    return segments * (every_s + save_s) + lost * segments / whole + restarts * segments / whole


def _cut_sum(random: np.random.Generator, count: int, mean: float, at: float) -> float:
    """Draw the sum of `count` exponential times of this mean, each below `at`."""
    if count <= _MANY:
        return float(np.sum(-mean * np.log1p(random.random(count) * expm1(-at / mean))))
    grown = expm1(at / mean)
    variance = max(0.0, mean**2 - at**2 * (grown + 1) / grown**2)
    return float(random.normal(count * (mean - at / grown), sqrt(count * variance)))


def _restarting(random: np.random.Generator, count: int, restart_s: float, mtbf_s: float) -> float:
    """Restarts fail too, and are begun again."""
    again = random.negative_binomial(count, exp(-restart_s / mtbf_s)) if count else 0
    return count * restart_s + _cut_sum(random, int(again), mtbf_s, restart_s)
