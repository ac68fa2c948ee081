"""Numerical parity of parallel layouts: each mix is compared with one process, from the same seed and data order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from trainyard.errors import BadInput, BadJob, MissingLibrary, RankDied
from trainyard.job import Job, Layout
from trainyard.numerics.parity_trial import Trial
from trainyard.train.step.outcome import Outcome

STEPS = 4
TOLERANCE = {"float32": 1e-5, "tf32": 1e-3, "bfloat16": 1e-2, "float16": 2e-3, "float8": 5e-2}
"""Dtype -> largest relative error allowed of any step's loss or gradient norm. A different order of summation changes
some units in the last place (2^-24, 2^-11, 2^-9, 2^-4), and that grows over a few steps."""

_SELF_COMPARISON = "one process, compared with itself: that does not test a layout"

Run = Callable[[Job, int], Trial]
"""(job, number of steps) -> loss and gradient norm of each step."""


class ParityMix(NamedTuple):
    """A named job."""

    name: str
    job: Job


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one mix. `loss_error`, `grad_norm_error`: largest relative error over the steps, None if it did not
    run. `dtype`: the number format of both sides."""

    mix: str
    ranks: int
    dtype: str
    loss_error: float | None = None
    grad_norm_error: float | None = None
    tolerance: float
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
    )
    return replace(job, layout=Layout(), recipe=recipe)


def compare(mixes: Iterable[ParityMix], run: Run, steps: int = STEPS) -> Iterator[Parity]:
    """Yields one result per mix as it completes. Mixes with the same one-process reference share one run of it.
    `steps`: trained on each side. A mix that cannot be trained is `refused`; one whose rank died is `different`."""
    outcomes_by_reference: dict[bytes, Sequence[Outcome]] = {}
    for mix in mixes:
        try:
            parallel_trial = run(mix.job, steps)
        except (BadJob, MissingLibrary) as error:
            yield _unfinished(mix, "refused", str(error))
            continue
        except RankDied as error:
            yield _unfinished(mix, "different", str(error).strip().splitlines()[-1])
            continue
        reference = alone(mix.job)
        key = msgspec.json.encode(reference)
        if key not in outcomes_by_reference:
            outcomes_by_reference[key] = run(reference, steps).outcomes
        yield _compare_steps(mix, parallel_trial, outcomes_by_reference[key], is_reference=reference == mix.job)


def _unfinished(mix: ParityMix, verdict: Literal["different", "refused"], reason: str) -> Parity:
    """The result of a mix that did not finish its steps for `reason`."""
    recipe = mix.job.recipe
    return Parity(
        mix=mix.name,
        ranks=mix.job.layout.ranks,
        dtype=recipe.dtype,
        tolerance=TOLERANCE.get(recipe.dtype, 0.0),
        verdict=verdict,
        reason=reason,
        seconds=0.0,
    )


def _compare_steps(mix: ParityMix, parallel_trial: Trial, reference: Sequence[Outcome], is_reference: bool) -> Parity:
    """Compares losses and gradient norms of the parallel run with those of the single-rank `reference`, step by step.
    `is_reference`: the mix is its own reference, as it runs on one rank."""
    tolerance = TOLERANCE[mix.job.recipe.dtype]
    loss_error = _largest_error(
        [(step.loss, expected.loss) for step, expected in zip(parallel_trial.outcomes, reference)]
    )
    norm_error = _largest_error(
        [(step.grad_norm, expected.grad_norm) for step, expected in zip(parallel_trial.outcomes, reference)]
    )
    equal = loss_error <= tolerance and norm_error <= tolerance
    wrong = " and ".join(
        name for name, error in (("loss", loss_error), ("gradient norm", norm_error)) if not error <= tolerance
    )
    return Parity(
        mix=mix.name,
        ranks=mix.job.layout.ranks,
        dtype=mix.job.recipe.dtype,
        loss_error=loss_error,
        grad_norm_error=norm_error,
        tolerance=tolerance,
        verdict="equal" if equal else "different",
        reason=f"{wrong} off by more than {tolerance:g}" if not equal else _SELF_COMPARISON if is_reference else "",
        seconds=round(parallel_trial.seconds, 2),
    )


def _largest_error(pairs: Sequence[tuple[float, float]]) -> float:
    """The largest relative error of (value, expected) pairs; infinite if it is not a number, or if a value differs from
    an expected 0. Raises `BadInput` without pairs."""
    if not pairs:
        raise BadInput("0 steps were trained, so there is nothing to compare.", "Train at least 1 step.")
    errors = [
        0.0 if value == expected else abs(value - expected) / abs(expected) if expected else float("inf")
        for value, expected in pairs
    ]
    return max(float("inf") if error != error else error for error in errors)  # NaN is not equal to itself
