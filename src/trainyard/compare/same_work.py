"""Whether two sides did the same work in a step: as their jobs say it, else as their recordings show it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from trainyard import units
from trainyard.compare.differences import command
from trainyard.compare.side import Side, likeness, operations
from trainyard.job import Job
from trainyard.ledger import WINDOW
from trainyard.record import Run

# The same inference on two vendors' devices shares 91 % of its ops, one job with two data loaders 86 %;
# two unlike jobs of the public traces at most 45 %.
_SAME_WORK = 0.7
_SAME_FLOPS = 0.05
"""Batches of unequal length, and tokens that choose their experts, make steps of one job differ by less than this."""
_PRODUCTS = ("matmul", "conv", "attention")


class SameWork(NamedTuple):
    """`reasons`: it is not the same; `doubts`: nothing says whether it is. None of either: it is."""

    reasons: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def compare_work(a: Side, b: Side) -> SameWork:
    if a.job and b.job:
        return SameWork(tuple(of_jobs(a.job, b.job)))
    tokens = _tokens(a), _tokens(b)
    if all(tokens) and tokens[0] != tokens[1]:
        return SameWork((f"Different tokens a step: {tokens[0]:,} against {tokens[1]:,}.",))
    flops = forward_flops(a), forward_flops(b)
    if all(flops):
        return SameWork(_of_flops(*flops))
    if a.plan or b.plan:
        return SameWork((), ("A plan says what its job is, and nothing recorded says that the other is of that job.",))
    alike = likeness(operations(a.events), operations(b.events)) if a.events and b.events else 1.0
    if a.run is None or b.run is None:
        return SameWork(_of_ops(a, b, alike))
    return SameWork((), tuple(_of_scripts(a.run, b.run, tokens, alike)))


def forward_flops(side: Side) -> int:
    """Of the matrix products, convolutions and attention of a forward pass on a rank; 0 where any of them is unknown,
    or where no marks say what a step is. The backward pass follows from it, and may compute some of it again."""
    if WINDOW in side.mean.scope.steps:
        return 0
    counted = [
        entry.flops
        for entry in side.mean.entries
        if entry.phase == "forward" and entry.account.kind == "compute" and entry.account.what in _PRODUCTS
    ]
    known = [flops for flops in counted if flops is not None]
    return sum(known) if len(known) == len(counted) else 0


def _tokens(side: Side) -> int:
    """Of a step over all ranks; 0 where nobody said it."""
    job = side.run.job if side.run else side.job
    return job.recipe.tokens_per_step if job else 0


def of_jobs(one: Job, other: Job) -> list[str]:
    """Why a step of one is not the other's."""
    said: list[str] = []
    if one.workload != other.workload:
        said.append(f"Different workloads: {one.workload} against {other.workload}.")
    for what, before, after in (
        ("models", msgspec.to_builtins(one.model) or {}, msgspec.to_builtins(other.model) or {}),
        ("sizes", one.sizes, other.sizes),
    ):
        keys = [key for key in {**before, **after} if key != "name" and before.get(key) != after.get(key)]
        if keys:
            parts = [f"{key} {before.get(key, 'absent')} against {after.get(key, 'absent')}" for key in keys]
            said.append(f"Different {what}: {', '.join(parts)}.")
    for what, before, after in (
        ("sequence lengths", one.recipe.seq_len, other.recipe.seq_len),
        ("tokens a step", one.recipe.tokens_per_step, other.recipe.tokens_per_step),
    ):
        if before != after:
            said.append(f"Different {what}: {before:,} against {after:,}.")
    return said


def _of_flops(before: int, after: int) -> tuple[str, ...]:
    if abs(after - before) <= _SAME_FLOPS * max(before, after):
        return ()
    shown = [units.show_rate(flops, "FLOP", 2) for flops in (before, after)]
    return (f"The steps do different work: a rank's forward pass computes {shown[0]} against {shown[1]}.",)


def _of_ops(a: Side, b: Side, alike: float) -> tuple[str, ...]:
    if alike >= _SAME_WORK:
        return ()
    if all(events.marks for side in (a, b) for events in side.events):
        return (f"The steps do different work: {100 * alike:.0f} % of their framework ops agree.",)
    return (
        f"Not both have step marks, and the recordings hold different work: {100 * alike:.0f} % of their framework ops "
        "agree. They may be of different length.",
    )


def _of_scripts(before: Run, after: Run, tokens: tuple[int, int], alike: float) -> list[str]:
    """The same command is taken for the same work; so are other arguments with as many tokens and the same ops."""
    said: list[str] = []
    one, other = command(before), command(after)
    if alike < _SAME_WORK:
        said.append(
            f"{100 * alike:.0f} % of the two steps' framework ops agree: other work, or the same one compiled or fused."
        )
    if one != other and not all(tokens):
        known = [f"{count:,}" if count else "unknown" for count in tokens]
        said.append(
            f"{one!r} against {other!r}, and nothing recorded says whether they do the same work: shapes are not "
            f"recorded of both, tokens a step are {known[0]} against {known[1]}. "
            "`with trainyard.step(tokens=...):` in a script says its tokens."
        )
    return said
