"""Whether the loss curves alone show a fault: 80 steps of both variants with several seeds, compared as by the gate."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from math import isfinite
from statistics import fmean

import msgspec

from trainyard.numerics.convergence.compare_curves import Convergence, judge
from trainyard.numerics.convergence.curves import LossCurve
from trainyard.numerics.convergence.paired_curves import pair
from validation.numerics.fault import Fault
from validation.numerics.recorded_pair import TIMEOUT_S, CommandFailed

STEPS = 80
SEEDS = (0, 1, 2, 3)
_LOSS = re.compile(r"^rank (\d+) step (\d+) loss (\S+)$", re.MULTILINE)


class CurveVerdict(msgspec.Struct, frozen=True):
    """Verdict of `trainyard gate convergence`. `difference`: of the final loss, faulty / good - 1. `onset`: the first
    step that differs significantly."""

    verdict: str
    difference: float | None
    onset: int | None


def judge_curves(fault: Fault, steps: int = STEPS, seeds: Sequence[int] = SEEDS) -> CurveVerdict:
    """Trains both variants without recording them, and compares their losses."""
    good, faulty = ([_train(fault, is_faulty, steps, seed) for seed in seeds] for is_faulty in (False, True))
    result: Convergence = judge(pair(faulty, good))
    return CurveVerdict(result.verdict, result.difference, result.onset)


def read_losses(output: str) -> dict[int, float]:
    """Step -> mean of the losses that the ranks printed."""
    losses: dict[int, list[float]] = defaultdict(list)
    for _, step, loss in _LOSS.findall(output):
        losses[int(step)].append(float(loss))
    return {step: fmean(losses[step]) for step in sorted(losses)}


def _train(fault: Fault, is_faulty: bool, steps: int, seed: int) -> LossCurve:
    arguments = ("--steps", str(steps), "--seed", str(seed))
    command = fault.command(sys.executable, faulty=is_faulty, arguments=arguments)
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if result.returncode:
        raise CommandFailed(f"{' '.join(command)}: exit code {result.returncode}: {result.stderr[-2000:]}")
    losses = read_losses(result.stdout)
    return LossCurve(
        name=f"{fault.id}, {'faulty' if is_faulty else 'good'}, seed {seed}",
        seed=seed,
        steps=tuple(losses),
        losses=tuple(loss if isfinite(loss) else None for loss in losses.values()),
    )
