"""The bounds of the steps of each rank in a timeline, from the ledgers of the parts of its window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainyard.ledger import AFTER, BEFORE, WINDOW, Ledger

StepBounds = tuple[str, int, int]
"""(label, start, stop) of a part of a rank's window, in ns from the timeline's origin."""
_MOST_BOUNDS = 20_000
"""Parts of all ranks together, above which only those of the ranks with all lanes are in a page."""


def step_label(label: str) -> str:
    """The label of a part of the window as shown: `step 7`, or the name of a part that is not a step."""
    return label if label in (BEFORE, WINDOW, AFTER) else f"step {label}"


def steps_by_rank(ledgers: Sequence[Ledger], first_ns: Sequence[int]) -> dict[int, tuple[StepBounds, ...]]:
    """The parts of each rank's window, which they tile. `ledgers`: one for each part, rank by rank in order of time, as
    in `MeasuredTrace.by_rank`; `first_ns`: the start of the window of each rank, in ns from the timeline's origin."""
    by_rank: dict[int, list[StepBounds]] = {}
    for ledger in ledgers:
        (rank,), (label,) = ledger.scope.ranks, ledger.scope.steps
        steps = by_rank.setdefault(rank, [])
        start = steps[-1][2] if steps else first_ns[len(by_rank) - 1]
        steps.append((step_label(label), start, start + ledger.wall_ns))
    return {rank: tuple(steps) for rank, steps in by_rank.items()}


def own_steps(
    by_rank: Mapping[int, tuple[StepBounds, ...]], first: int, in_detail: Sequence[int]
) -> dict[int, tuple[StepBounds, ...]]:
    """The steps of those ranks whose steps differ from those of rank `first`. `in_detail`: the ranks that have all
    lanes, to which the result is limited if there are too many steps."""
    own = {rank: steps for rank, steps in by_rank.items() if steps != by_rank[first]}
    if len({step for steps in own.values() for step in steps}) <= _MOST_BOUNDS:
        return own
    return {rank: own[rank] for rank in in_detail if rank in own}
