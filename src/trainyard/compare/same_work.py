"""Whether two sides do the same work in a step, by their jobs or, without jobs, by their recordings.

A side is one of the two recordings that are compared: a run, a trace or a plan.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from trainyard import units
from trainyard.compare.differences import describe_command
from trainyard.compare.side import Side, count_operations, measure_similarity
from trainyard.job import Job
from trainyard.ledger import WINDOW
from trainyard.record import Run

# Measured likeness: 91 % for the same inference on two vendors' devices, 86 % for one job with two data loaders, and at
# most 45 % for two different jobs among the public traces.
_MIN_SIMILARITY = 0.7
_FLOPS_TOLERANCE = 0.05
"""Relative tolerance: batches of unequal length and MoE routing make the steps of one job differ by less than this."""
_COUNTED_CLASSES = ("matmul", "conv", "attention")


class SameWork(NamedTuple):
    """`reasons`: why the work differs; `doubts`: why that is unknown. Both empty: the work is the same."""

    reasons: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def compare_work(a: Side, b: Side) -> SameWork:
    """Whether the work is the same, by the best evidence there is: both jobs, tokens per step, FLOPs, then the
    framework ops."""
    if a.job and b.job:
        return SameWork(tuple(compare_jobs(a.job, b.job)))
    tokens = _tokens_per_step(a), _tokens_per_step(b)
    if all(tokens) and tokens[0] != tokens[1]:
        return SameWork((f"Different tokens per step: {tokens[0]:,} against {tokens[1]:,}.",))
    flops = sum_forward_flops(a), sum_forward_flops(b)
    if all(flops):
        return SameWork(_compare_flops(*flops))
    if a.plan or b.plan:
        return SameWork((), ("The recording does not identify its job, so it may not be the job of the plan.",))
    if not (a.run or b.run or (a.events and b.events)):
        return SameWork((), ("The framework ops are not available, so the steps may do different work.",))
    similarity = (
        measure_similarity(count_operations(a.events), count_operations(b.events)) if a.events and b.events else 1.0
    )
    if a.run is None or b.run is None:
        return SameWork(_compare_operations(a, b, similarity))
    return SameWork((), tuple(_compare_scripts(a.run, b.run, tokens, similarity)))


def sum_forward_flops(side: Side) -> int:
    """FLOPs of the matrix products, convolutions and attention of one forward pass on one rank; 0 if any of them is
    unknown or the trace has no step marks. The backward pass is left out: its FLOPs follow from the forward pass, and
    activation checkpointing changes them."""
    if WINDOW in side.mean.scope.steps:
        return 0
    entry_flops = [
        entry.flops
        for entry in side.mean.entries
        if entry.phase == "forward" and entry.account.kind == "compute" and entry.account.what in _COUNTED_CLASSES
    ]
    known_flops = [flops for flops in entry_flops if flops is not None]
    return sum(known_flops) if len(known_flops) == len(entry_flops) else 0


def _tokens_per_step(side: Side) -> int:
    """Tokens per step over all ranks; 0 if unknown."""
    job = side.run.job if side.run else side.job
    return job.recipe.tokens_per_step if job else 0


def compare_jobs(a: Job, b: Job) -> list[str]:
    """Reasons why a step of one job is not the same work as a step of the other; empty if it is."""
    reasons: list[str] = []
    if a.workload != b.workload:
        reasons.append(f"Different workloads: {a.workload} against {b.workload}.")
    for noun, before, after in (
        ("models", msgspec.to_builtins(a.model) or {}, msgspec.to_builtins(b.model) or {}),
        ("sizes", a.sizes, b.sizes),
    ):
        keys = [key for key in {**before, **after} if key != "name" and before.get(key) != after.get(key)]
        if keys:
            parts = [f"{key} {before.get(key, 'absent')} against {after.get(key, 'absent')}" for key in keys]
            reasons.append(f"Different {noun}: {', '.join(parts)}.")
    for noun, before, after in (
        ("sequence lengths", a.recipe.seq_len, b.recipe.seq_len),
        ("tokens per step", a.recipe.tokens_per_step, b.recipe.tokens_per_step),
    ):
        if before != after:
            reasons.append(f"Different {noun}: {before:,} against {after:,}.")
    return reasons


def _compare_flops(before: int, after: int) -> tuple[str, ...]:
    """Reasons why the work differs; empty if the FLOPs of a rank's forward pass agree within `_FLOPS_TOLERANCE`."""
    if abs(after - before) <= _FLOPS_TOLERANCE * max(before, after):
        return ()
    counts = [units.show_rate(flops, "FLOP", 2) for flops in (before, after)]
    return (f"The steps do different work: a rank's forward pass computes {counts[0]} against {counts[1]}.",)


def _compare_operations(a: Side, b: Side, similarity: float) -> tuple[str, ...]:
    """Reasons why the recordings differ; empty if they are similar enough. `similarity`: of their framework ops, from 0
    to 1 (`measure_similarity`)."""
    if similarity >= _MIN_SIMILARITY:
        return ()
    if all(events.marks for side in (a, b) for events in side.events):
        return (f"The steps do different work: {100 * similarity:.0f} % of their framework ops agree.",)
    return (
        f"The recordings contain different work: {100 * similarity:.0f} % of their framework ops agree. At least one "
        "has no step marks, so they may differ in length only.",
    )


def _compare_scripts(before: Run, after: Run, tokens: tuple[int, int], similarity: float) -> list[str]:
    """Doubts about two runs of scripts, empty if they did the same work. The same command is assumed to do the same
    work; so are different arguments with the same tokens per step and the same ops. `tokens`: per step of both, 0 if
    unknown; `similarity`: as in `_compare_operations`."""
    doubts: list[str] = []
    old, new = describe_command(before), describe_command(after)
    if similarity < _MIN_SIMILARITY:
        doubts.append(
            f"{100 * similarity:.0f} % of the two steps' framework ops agree: different work, or the same work "
            "compiled or fused."
        )
    if old != new and not all(tokens):
        shown_tokens = [f"{count:,}" if count else "unknown" for count in tokens]
        doubts.append(
            f"{old!r} against {new!r} may not be the same work: tokens per step are {shown_tokens[0]} "
            f"against {shown_tokens[1]}, and shapes were not recorded on both sides. "
            "Declare the tokens in the script: `with trainyard.step(tokens=...):`."
        )
    return doubts
