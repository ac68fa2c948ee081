"""Whether a difference between two sides means anything, and what to keep in mind when it does."""

from __future__ import annotations

from typing import NamedTuple

from trainyard.compare.side import Side, likeness, operations
from trainyard.record import Run

# The same inference on two vendors' devices shares 91 % of its ops, one job with two data loaders 86 %;
# two unlike jobs of the public traces at most 45 %.
_SAME_WORK = 0.7


class Comparability(NamedTuple):
    """`reasons` why the two cannot be compared (none: they can), `caveats` to print beside the difference."""

    reasons: tuple[str, ...]
    caveats: tuple[str, ...]


def comparable(a: Side, b: Side) -> Comparability:
    reasons: list[str] = []
    caveats: list[str] = []
    if a.world != b.world:
        reasons.append(f"{a.name} is of {a.world} ranks, {b.name} of {b.world}: each rank's share of the work differs.")
    _compare_work(a, b, reasons)
    if a.device != b.device:
        caveats.append(f"Different devices: {a.device or 'unnamed'} against {b.device or 'unnamed'}.")
    if a.mean.basis != b.mean.basis:
        caveats.append(f"{a.name} is {a.mean.basis}, {b.name} is {b.mean.basis}.")
    if a.mean.scope.aligned != b.mean.scope.aligned:
        caveats.append(
            "Only one side's clocks are aligned: waiting for late ranks is straggler there and comm on the other side."
        )
    if a.mean.scope.ranks != b.mean.scope.ranks and a.world == b.world:
        caveats.append(f"Different ranks: {_ranks(a)} against {_ranks(b)}.")
    caveats.extend(
        f"{side.name} has no full step: its figures are of a partial one." for side in (a, b) if side.mean.scope.partial
    )
    if a.run and b.run:
        caveats.extend(_provenance(a.run, b.run))
    return Comparability(tuple(reasons), tuple(caveats))


def _compare_work(a: Side, b: Side, reasons: list[str]) -> None:
    if a.run and b.run:
        one, other = a.run.job, b.run.job
        for what, before, after in (
            ("models", one.model, other.model),
            ("sequence lengths", one.recipe.seq_len, other.recipe.seq_len),
            ("tokens a step", one.recipe.tokens_per_step, other.recipe.tokens_per_step),
        ):
            if before != after:
                reasons.append(f"Different {what}: {before} against {after}.")
    elif a.events and b.events:
        alike = likeness(operations(a.events), operations(b.events))
        marked = all(events.marks for side in (a, b) for events in side.events)
        if alike < _SAME_WORK and marked:
            reasons.append(f"The steps do different work: {100 * alike:.0f} % of their framework ops agree.")
        elif alike < _SAME_WORK:
            reasons.append(
                f"Not both have step marks, and the recordings hold different work: {100 * alike:.0f} % of their "
                "framework ops agree. They may be of different length."
            )


def _ranks(side: Side) -> str:
    ranks = side.mean.scope.ranks
    listed = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"


def _provenance(before: Run, after: Run) -> list[str]:
    """What else differs between two runs, a line each."""
    one, other = before.provenance, after.provenance
    said: list[str] = []
    if before.job.layout != after.job.layout:
        said.append(f"Layout: {before.job.layout} against {after.job.layout}.")
    if before.job.recipe.dtype != after.job.recipe.dtype:
        said.append(f"Precision: {before.job.recipe.dtype} against {after.job.recipe.dtype}.")
    for what, was, now in (
        ("Code", one.code, other.code),
        ("Torch", one.torch_build, other.torch_build),
        ("Driver", one.driver, other.driver),
        ("Host", one.host, other.host),
        ("Environment", one.environment, other.environment),
        ("Packages", one.packages, other.packages),
    ):
        keys = sorted(key for key in was.keys() | now.keys() if was.get(key) != now.get(key))
        for key in keys[:4]:
            said.append(f"{what} {key}: {was.get(key, 'absent')} against {now.get(key, 'absent')}.")
        if len(keys) > 4:
            said.append(f"{what}: {len(keys) - 4} more differences.")
    return said
