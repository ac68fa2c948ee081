"""Parity's tolerances: is a difference rounding, how often are equal trainings different, which faults are detected?

`python -m validation.parity float64` trains float16 layouts of TP x FSDP2, one process and its replicas, and prints
their errors against a float64 reference from the same weights and data. `python -m validation.parity false-alarms`
compares fresh replicas of every reference of the parity matrix with it. `python -m validation.parity faults` prints the
smallest planted faults that are detected, by number format (`faults float16` for one).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from math import sqrt

import msgspec
import torch
from msgspec.structs import replace

from trainyard.errors import MissingLibrary
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.numerics.parity import STEPS, alone
from trainyard.numerics.parity_mixes import MIXES
from trainyard.numerics.parity_trial import trial
from trainyard.numerics.rounding_tolerance import relative_error, step_tolerances, tolerance_rule
from trainyard.train.step.outcome import Outcome
from validation.float64_training import train_in_float64
from validation.parity_faults import FAULTS, reference, smallest_detected

LAYOUT = Layout(tp=2, dp_shard=2)
MODELS = {
    "tied, layer norm, biases": "FSDP2: GPT",
    "norms of queries and keys": "TP, SP: Qwen",
    "sizes that divide unevenly": "TP, SP x FSDP2: uneven",
}
"""Label of a decoder -> a mix of the parity matrix that trains it."""
FIXED = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3, "float8": 5e-2}
"""The tolerances by number format before they followed from rounding, for comparison."""
FRESH = 8
"""Replicas of each reference that are tested, in addition to those that the tolerances follow from."""


def _job(mix: str, dtype: str, optimizer: str = "adamw") -> Job:
    """The one-process job of a mix of the parity matrix, in another number format."""
    job = alone(next(candidate.job for candidate in MIXES if candidate.name == mix))
    return replace(job, recipe=replace(job.recipe, dtype=dtype, optimizer=optimizer))


def print_float64() -> None:
    """Errors of the gradient norm against float64 in each step: one process, its replicas, and the layout. Then the
    difference between the layout and one process, with its tolerance."""
    rule = tolerance_rule(STEPS)
    print("| model | optimizer | step | one process | replicas, RMS | layout | layout to one process | tolerance |")
    print("|---|---|---|---|---|---|---|---|")
    for label, mix in MODELS.items():
        for optimizer in ("adamw", "sgd"):
            job = _job(mix, "float16", optimizer)
            exact, alone_trial = train_in_float64(job, STEPS), trial(job, STEPS, rule.replicas)
            layout = trial(replace(job, layout=LAYOUT), STEPS).outcomes
            tolerances = step_tolerances(rule, alone_trial.outcomes, alone_trial.replicas)
            to_exact = [
                _norm_errors(outcomes, exact) for outcomes in (alone_trial.outcomes, layout, *alone_trial.replicas)
            ]
            to_one = _norm_errors(layout, alone_trial.outcomes)
            for step in range(STEPS):
                process, spread, *replicas = (errors[step] for errors in to_exact)
                rms = sqrt(sum(error**2 for error in replicas) / len(replicas))
                cells = (process, rms, spread, to_one[step], tolerances[step].grad_norm)
                print(f"| {label} | {optimizer} | {step} | {' | '.join(f'{cell:.1e}' for cell in cells)} |", flush=True)


def _norm_errors(outcomes: Sequence[Outcome], expected: Sequence[Outcome]) -> list[float]:
    """Relative errors of the gradient norm, by step."""
    return [relative_error(step.grad_norm, right.grad_norm) for step, right in zip(outcomes, expected)]


def print_false_alarms() -> None:
    """For each number format: replicas, which differ from their reference by rounding only, and how many exceed the
    tolerances."""
    rule = tolerance_rule(STEPS)
    equal: dict[str, list[bool]] = {}  # number format -> whether each comparison is within the tolerances
    for job in _references():
        try:
            alone_trial = trial(job, STEPS, rule.replicas + FRESH)
        except MissingLibrary as error:
            print(f"{job.name}: {error}", file=sys.stderr)
            continue
        tolerances = step_tolerances(rule, alone_trial.outcomes, alone_trial.replicas[: rule.replicas])
        equal.setdefault(job.recipe.dtype, []).extend(
            all(
                relative_error(step.loss, right.loss) <= limit.loss
                and relative_error(step.grad_norm, right.grad_norm) <= limit.grad_norm
                for step, right, limit in zip(replica, alone_trial.outcomes, tolerances)
            )
            for replica in alone_trial.replicas[rule.replicas :]
        )
    print("| number format | replicas | different |\n|---|---|---|")
    for dtype, verdicts in equal.items():
        print(f"| {dtype} | {len(verdicts)} | {verdicts.count(False)} |")


def _references() -> Iterator[Job]:
    """Every one-process job that the parity matrix compares with, once."""
    jobs = {msgspec.json.encode(replace(alone(mix.job), name="")): alone(mix.job) for mix in reversed(MIXES)}
    yield from reversed(jobs.values())


def print_faults(dtypes: Sequence[str]) -> None:
    """The smallest size of each planted fault that is detected, and with fixed tolerances."""
    print("| fault | number format | smallest detected | with a fixed tolerance |\n|---|---|---|---|")
    for dtype in dtypes:
        job = _job("FSDP2: GPT", dtype)
        expected = reference(job)
        fixed = expected.with_fixed_tolerance(FIXED[dtype])
        for name, plant in FAULTS.items():
            sizes = smallest_detected(job, plant, (expected, fixed))
            cells = " | ".join("none" if size is None else f"{size:.1e}" for size in sizes)
            print(f"| {name} | {dtype} | {cells} |", flush=True)


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    match arguments:
        case ["float64"]:
            print_float64()
        case ["false-alarms"]:
            print_false_alarms()
        case ["faults", *dtypes] if set(dtypes) <= FIXED.keys():
            print_faults(dtypes or list(FIXED))
        case _:
            sys.exit(f"python -m validation.parity float64, false-alarms, or faults [{' | '.join(FIXED)}]")


if __name__ == "__main__":
    main(sys.argv[1:])
