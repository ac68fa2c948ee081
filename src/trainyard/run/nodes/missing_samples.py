"""Determine which samples a run on several hosts lacks: those of a node that was replaced, and of an earlier head."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from trainyard.launch.supervisor.event_log import JobEvent
from trainyard.record import Run
from trainyard.units import show_ranges, show_ranks


def missing_samples(run: Run, events: Sequence[JobEvent]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Ranks -> the steps of which these ranks have no sample, up to the last step of the run; both ascending. Empty if
    no sample is missing.

    `run`: with the samples of all nodes; `events`: of the job. In an attempt on fewer nodes the ranks that it did not
    have miss nothing. An attempt without a record, as those of an earlier head, had all ranks.
    """
    ranks_of_attempt = {event.attempt: run.job.ranks_on(event.nodes) for event in events if event.type == "launched"}
    kept = run.kept()
    attempt_of_step = {sample.step: sample.attempt for sample in kept}
    present = {(sample.rank, sample.step) for sample in kept}
    steps_of_rank: dict[int, list[int]] = defaultdict(list)
    for step in range(max(attempt_of_step, default=-1) + 1):
        ranks = ranks_of_attempt.get(attempt_of_step.get(step, -1), run.job.layout.ranks)
        for rank in range(ranks):
            if (rank, step) not in present:
                steps_of_rank[rank].append(step)
    ranks_of_steps: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, steps in sorted(steps_of_rank.items()):
        ranks_of_steps[tuple(steps)].append(rank)
    return {tuple(ranks): steps for steps, ranks in ranks_of_steps.items()}


def describe_missing_samples(run: Run, events: Sequence[JobEvent]) -> tuple[str, ...]:
    """A sentence for each group of ranks that lacks samples of the same steps; parameters as in `missing_samples`."""
    return tuple(
        f"The samples of {show_ranks(ranks)} at steps {show_ranges(steps)} are missing: the node that recorded "
        "them was replaced, or they are in the store of an earlier head. Figures are of the other samples."
        for ranks, steps in missing_samples(run, events).items()
    )
