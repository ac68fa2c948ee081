"""One side of a comparison: a run, a set of traces, or a plan, with what is needed to judge comparability."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard import ledger as ledgers_of
from trainyard.events import OP, Events
from trainyard.job import SCRIPT, Job
from trainyard.ledger import Account, Ledger
from trainyard.plan import Plan
from trainyard.record import Run
from trainyard.store.run_summary import summarise


class Side(NamedTuple):
    """`ledgers`: each rank's parts; `mean`: over ranks and full steps. `events`, `run`, `plan`: if there are any.
    `left_out`: sentences about ranks whose files could not be read, or only in part."""

    name: str
    mean: Ledger
    ledgers: tuple[Ledger, ...]
    events: tuple[Events, ...] = ()
    run: Run | None = None
    plan: Plan | None = None
    left_out: str = ""

    @property
    def job(self) -> Job | None:
        """What was or is to be trained; None of traces, and of somebody's own script."""
        if self.run and self.run.job.workload != SCRIPT:
            return self.run.job
        return self.plan.job if self.plan else None

    def steps(self) -> list[dict[Account, int]]:
        """Each full step's accounts, averaged over its ranks."""
        by_step: dict[tuple[str, ...], list[Ledger]] = {}
        for ledger in self.ledgers:
            if ledger.scope.reduce == "one" and not ledger.scope.partial:
                by_step.setdefault(ledger.scope.steps, []).append(ledger)
        return [ledgers_of.mean(own).by_account() for own in by_step.values()]

    @property
    def device(self) -> str:
        if self.plan:
            return self.plan.ledger.source
        if self.events:
            return self.events[0].device or ("CPU" if self.events[0].device_index < 0 else "")
        return self.run.provenance.devices[0].name if self.run and self.run.provenance.devices else ""

    @property
    def timed_ns(self) -> int:
        """The median step without the profiler, where a run timed some; a plan knows no profiler; else 0."""
        if self.plan:
            return self.plan.ledger.wall_ns
        return summarise(self.run).step_ns if self.run else 0

    @property
    def world(self) -> int:
        if known := self.run or self.plan:
            return known.job.layout.ranks
        return max(1, self.events[0].world) if self.events else len(self.mean.scope.ranks)


def operations(events: Sequence[Events]) -> Counter[str]:
    """How often a step runs each framework op, in thousandths: what a job is, whatever device it runs on. Without
    marks a step is not known, and the whole trace counts as one."""
    total: Counter[str] = Counter()
    steps = 0
    for one in events:
        host = one.host
        rows = host.what == OP
        if one.marks:
            rows &= (host.start >= one.marks[0].start) & (host.start < one.marks[-1].stop)
        steps += max(1, len(one.marks))
        numbers, counts = np.unique(host.name[rows], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist()):
            if one.names[number].startswith("aten::"):
                total[one.names[number]] += count
    return Counter({name: 1000 * count // max(1, steps) for name, count in total.items()})


def likeness(a: Counter[str], b: Counter[str]) -> float:
    """Weighted Jaccard similarity of two counts of ops: 1 the same work, 0 nothing in common."""
    either = sum((a | b).values())
    return sum((a & b).values()) / either if either else 1.0
