"""Numerical parity of parallel layouts: each mix is compared with one process, from the same seed and data order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, isfinite
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from trainyard.errors import BadInput, BadJob, MissingLibrary, RankDied
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.numerics.parity_trial import Trial
from trainyard.numerics.rounding_tolerance import StepTolerance, relative_error, step_tolerances, tolerance_rule
from trainyard.train.step.outcome import Outcome

STEPS = 4

_SELF_COMPARISON = "one process, compared with itself: that does not test a layout"

Run = Callable[[Job, int, int], Trial]
"""(job, number of steps, number of jittered replicas) -> loss and gradient norm of each step."""


class ParityMix(NamedTuple):
    """A named job."""

    name: str
    job: Job


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """How a loss or gradient norm deviates from that of one process. `error`: relative, of the step (from 0) where it
    is the largest part of its `tolerance`; None if it is not finite."""

    error: float | None
    tolerance: float
    step: int

    @property
    def fraction(self) -> float:
        """The error as a fraction of the tolerance."""
        return inf if self.error is None else self.error / self.tolerance

    @property
    def error_text(self) -> str:
        """The error with two digits."""
        return "not finite" if self.error is None else f"{self.error:.1e}" if self.error else "0"


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one mix. `loss`, `grad_norm`: how they deviate from those of one process, None if the mix did not
    run. `dtype`: the number format of both sides."""

    mix: str
    ranks: int
    dtype: str
    loss: Deviation | None = None
    grad_norm: Deviation | None = None
    verdict: Literal["equal", "different", "refused"]
    reason: str = ""
    seconds: float


def alone(job: Job) -> Job:
    """The same training on one rank, without activation checkpointing, compilation and offloading.

    Micro-batches keep their size: on any layout, batch norm and an auxiliary loss see one micro-batch at a time.
    """
    recipe = replace(
        job.recipe,
        activation_checkpoint="none",
        activation_checkpoint_every=1,
        schedule="none",
        offload=False,
        compile=False,
        num_workers=0,
        pin_memory=False,
        device_prefetch=False,
    )
    return replace(job, layout=Layout(), recipe=recipe)


class _Reference(NamedTuple):
    """Outcomes of one process, and the tolerances of each step from its replicas."""

    outcomes: Sequence[Outcome]
    tolerances: Sequence[StepTolerance]


def compare(mixes: Iterable[ParityMix], run: Run, steps: int = STEPS) -> Iterator[Parity]:
    """Yields one result per mix as it completes. Mixes with the same one-process reference share one run of it and of
    its replicas. `steps`: trained on each side. A mix that cannot be trained is `refused`; one whose rank died is
    `different`. Raises `BadInput` if no step was trained."""
    rule = tolerance_rule(steps)
    references: dict[bytes, _Reference] = {}
    for mix in mixes:
        try:
            parallel_trial = run(mix.job, steps, 0)
        except (BadJob, MissingLibrary) as error:
            yield _unfinished(mix, "refused", str(error))
            continue
        except RankDied as error:
            yield _unfinished(mix, "different", str(error).strip().splitlines()[-1])
            continue
        job = alone(mix.job)
        key = msgspec.json.encode(replace(job, name=""))
        if key not in references:
            trial = run(job, steps, rule.replicas)
            references[key] = _Reference(trial.outcomes, step_tolerances(rule, trial.outcomes, trial.replicas))
        yield _compare_steps(mix, parallel_trial, references[key], is_reference=job == mix.job)


def _unfinished(mix: ParityMix, verdict: Literal["different", "refused"], reason: str) -> Parity:
    """The result of a mix that did not finish its steps for `reason`."""
    return Parity(
        mix=mix.name,
        ranks=mix.job.layout.ranks,
        dtype=mix.job.recipe.dtype,
        verdict=verdict,
        reason=reason,
        seconds=0.0,
    )


def _compare_steps(mix: ParityMix, parallel_trial: Trial, reference: _Reference, is_reference: bool) -> Parity:
    """Compares losses and gradient norms of the parallel run with those of the single-rank `reference`, step by step.
    `is_reference`: the mix is its own reference, as it runs on one rank."""
    steps = list(zip(parallel_trial.outcomes, reference.outcomes, reference.tolerances))
    if not steps:
        raise BadInput("0 steps were trained, so there is nothing to compare.", "Train at least 1 step.")
    loss = _largest_deviation([(relative_error(step.loss, ref.loss), limit.loss) for step, ref, limit in steps])
    grad_norm = _largest_deviation(
        [(relative_error(step.grad_norm, ref.grad_norm), limit.grad_norm) for step, ref, limit in steps]
    )
    wrong = [
        f"the relative error of the {name} in step {deviation.step}, {deviation.error_text}, exceeds the "
        f"{deviation.tolerance:.1e} that rounding explains"
        for name, deviation in (("loss", loss), ("gradient norm", grad_norm))
        if deviation.fraction > 1
    ]
    return Parity(
        mix=mix.name,
        ranks=mix.job.layout.ranks,
        dtype=mix.job.recipe.dtype,
        loss=loss,
        grad_norm=grad_norm,
        verdict="different" if wrong else "equal",
        reason="; ".join(wrong) or (_SELF_COMPARISON if is_reference else ""),
        seconds=round(parallel_trial.seconds, 2),
    )


def _largest_deviation(errors: Sequence[tuple[float, float]]) -> Deviation:
    """The deviation of the step whose error is the largest part of its tolerance, from (error, tolerance) per step."""
    step = max(range(len(errors)), key=lambda number: errors[number][0] / errors[number][1])
    error, tolerance = errors[step]
    return Deviation(error=error if isfinite(error) else None, tolerance=tolerance, step=step)
