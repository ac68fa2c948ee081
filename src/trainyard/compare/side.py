"""One side of a comparison: a run, a set of traces, or a plan.

A ledger is the time of a step by account (category); events are the contents of a rank's trace, as columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard import ledger as ledgers_of
from trainyard.events import OP, Events
from trainyard.job import SCRIPT, Job
from trainyard.ledger import Account, Ledger
from trainyard.operation_tree import OperationTree
from trainyard.plan import Plan
from trainyard.record import Run
from trainyard.store.run_summary import summarise


class Side(NamedTuple):
    """`ledgers`: one per rank and part of its window; `mean`: over ranks and full steps. `events`, `run`, `plan`: if
    the side has them. `left_out`: sentences about ranks whose files could not be read in full.
    `operations`: the operation tree of the mean step, if it was built."""

    name: str
    mean: Ledger
    ledgers: tuple[Ledger, ...]
    events: tuple[Events, ...] = ()
    run: Run | None = None
    plan: Plan | None = None
    left_out: str = ""
    operations: OperationTree | None = None

    @property
    def job(self) -> Job | None:
        """The job that is trained; None for traces and for a run of the user's own script."""
        if self.run and self.run.job.workload != SCRIPT:
            return self.run.job
        return self.plan.job if self.plan else None

    def steps(self) -> list[dict[Account, int]]:
        """Each full step's accounts, averaged over its ranks."""
        by_step: dict[tuple[str, ...], list[Ledger]] = {}  # names of the steps -> ledgers, one per rank
        for ledger in self.ledgers:
            if ledger.scope.reduce == "one" and not ledger.scope.partial:
                by_step.setdefault(ledger.scope.steps, []).append(ledger)
        return [ledgers_of.mean(step_ledgers).by_account() for step_ledgers in by_step.values()]

    @property
    def device(self) -> str:
        """Name of the device, or the machine of a plan; `CPU` for a recording without a device, empty if unknown."""
        if self.plan:
            return self.plan.ledger.source
        if self.events:
            return self.events[0].device or ("CPU" if self.events[0].device_index < 0 else "")
        return self.run.provenance.devices[0].name if self.run and self.run.provenance.devices else ""

    @property
    def timed_ns(self) -> int:
        """The median step without the profiler, or the predicted step of a plan; 0 if no step was timed."""
        if self.plan:
            return self.plan.ledger.wall_ns
        return summarise(self.run).step_ns if self.run else 0

    @property
    def world(self) -> int:
        if known := self.run or self.plan:
            return known.job.layout.ranks
        return max(1, self.events[0].world) if self.events else len(self.mean.scope.ranks)


def count_operations(events: Sequence[Events]) -> Counter[str]:
    """Calls of each framework op per step, times 1000: a signature of the job that does not depend on the device. A
    trace without step marks counts as one step."""
    calls_by_op: Counter[str] = Counter()
    steps = 0
    for rank in events:
        host = rank.host  # columns of what the host did, a row per interval
        rows = host.what == OP  # mask
        if rank.marks:
            rows &= (host.start >= rank.marks[0].start) & (host.start < rank.marks[-1].stop)
        steps += max(1, sum(mark.is_training for mark in rank.marks))
        name_indices, counts = np.unique(host.name[rows], return_counts=True)
        for name_index, count in zip(name_indices.tolist(), counts.tolist()):
            if rank.names[name_index].startswith("aten::"):
                calls_by_op[rank.names[name_index]] += count
    return Counter({name: 1000 * count // max(1, steps) for name, count in calls_by_op.items()})


def measure_similarity(a: Counter[str], b: Counter[str]) -> float:
    """Weighted Jaccard similarity of two op counts: 1 if they are equal, 0 if they have no op in common."""
    union = sum((a | b).values())
    return sum((a & b).values()) / union if union else 1.0
