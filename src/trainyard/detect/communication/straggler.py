"""straggler: one rank arrives late at collectives and makes the others wait.

What it does: finds the rank that causes most of the waiting in collectives in most steps, and names the account in
which it differs from the others. The cost is the time that each of the others waits for it.
Why it matters: every rank is as slow as the slowest; the late rank itself often shows the shortest step.
Example: in an 8-rank job rank 7 is the last to arrive at 5 of its 8 collectives, and its own step is the shortest.
Remedy: look at that rank's host, device clocks and share of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.finding_text import finding, matters
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_SHARE = 0.4  # of all waiting: from this fraction on, one rank is named; below it, ranks were late in turn
_FAIR = 1.5  # times the share of a rank if all were late in turn: with two ranks, one is named from 75 % on
_LEAD = 1.5  # times the waiting caused by the next rank: if two are equally late, neither is named
_STEPS = 0.75  # of the full steps in which it must cause the most waiting: one host hiccup is not a straggler


_LEAST = 0.05  # of the step: identical devices differ by a few per cent


class Straggler:
    rule = "straggler"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        late = culprit_of(ledger, events)
        if late is None:
            return ()
        waits = {account: ns for account, ns in ledger.by_account().items() if account.kind == "straggler"}
        total, steps = sum(ledger.late.values()), len(ledger.scope.steps)
        shares = ", ".join(
            f"rank {rank} {units.show_share(ns, total, 0)}"
            for rank, ns in sorted(ledger.late.items(), key=lambda item: -item[1])[:4]
        )
        differs = _last(late, events) + _differs(late, events) if events else ""
        return finding(
            self.rule,
            ledger,
            max(waits, key=lambda account: waits[account]),
            each_waits(ledger, late),
            f"Rank {late} arrives late; each of the other ranks waits",
            evidence=f"share of all waiting caused: {shares}{differs}",
            remedy=f"Compare rank {late} with the others: its host, device clocks and share of the work.",
            # A few steps are weak evidence.
            sure=round(0.95 * steps / (steps + 1), 2),
        )


def late_rank(ledger: Ledger) -> int | None:
    """The rank that causes most of the waiting; None if no rank stands out or the waiting is small."""
    if not sum(ledger.late.values()):
        return None
    (rank, ns), *others = sorted(ledger.late.items(), key=lambda item: -item[1])
    ranks, total = _ranks(ledger), sum(ledger.late.values())
    leads = not others or ns >= _LEAD * others[0][1]
    return (
        rank
        if leads and ns >= max(_SHARE, _FAIR / ranks) * total and matters(ledger, each_waits(ledger, rank), _LEAST)
        else None
    )


def culprit_of(ledger: Ledger, events: Sequence[Booked] | None) -> int | None:
    """As `late_rank`, but None if the events show that this rank does not cause the most waiting in most steps."""
    rank = late_rank(ledger)
    if rank is None or not events:
        return rank
    by_step: dict[str, dict[int, int]] = {}
    for booked in events:
        waits = booked.waits
        in_collective = booked.keys(lambda account, _: account.kind == "straggler")
        step_index = np.where(in_collective[waits.key], booked.step_of(waits.start), -1)
        for index, late, ns in zip(step_index.tolist(), waits.late.tolist(), waits.ns.tolist()):
            if index >= 0:
                step = by_step.setdefault(booked.parts[index].label, {})
                step[late] = step.get(late, 0) + ns
    dearest = [max(step, key=lambda late: step[late]) == rank for step in by_step.values() if step]
    return rank if sum(dearest) >= _STEPS * len(dearest) else None


def each_waits(ledger: Ledger, rank: int) -> int:
    """ns a step that each of the other ranks waits for this one, on average: the time by which a step would be shorter.
    The mean ledger averages it over all ranks, including the late one."""
    ranks = _ranks(ledger)
    waited = ledger.by_kind().get("straggler", 0)
    return waited * ranks * ledger.late.get(rank, 0) // ((ranks - 1) * sum(ledger.late.values()))


def left_over(ledger: Ledger, rank: int | None) -> int:
    """ns of the mean ledger's waiting that ranks other than this one cause."""
    waited, total = ledger.by_kind().get("straggler", 0), sum(ledger.late.values())
    return waited - (waited * ledger.late.get(rank, 0) // total if rank is not None and total else 0)


def _ranks(ledger: Ledger) -> int:
    return max(len(ledger.scope.ranks), len(ledger.late), 2)


def _last(late: int, events: Sequence[Booked]) -> str:
    """How often the late rank was the last to arrive."""
    own = next((booked for booked in events if booked.events.rank == late), None)
    return f"; last to arrive at {own.last} of its {own.met} collectives" if own and own.met else ""


def _differs(late: int, events: Sequence[Booked]) -> str:
    """The account in which the late rank exceeds the others' median most: compute, copies or the host's gaps."""
    own: dict[str, int] = {}
    others: dict[str, list[int]] = {}
    for booked in events:
        spent = _spent(booked)
        if booked.events.rank == late:
            own = spent
        else:
            for account, ns in spent.items():
                others.setdefault(account, []).append(ns)
    more = {account: ns - int(median(others.get(account, [0]))) for account, ns in own.items()}
    account = max(more, key=lambda account: more[account], default="")
    if not account or more[account] <= 0:
        return ""
    return f"; it spends {units.show_time(more[account])} more than the others on {Account.parse(account).label}"


def _spent(booked: Booked) -> dict[str, int]:
    """ns a step of each account other than communication."""
    keys = np.concatenate([booked.key, booked.idle.key]) if booked.on_device else booked.key
    ns = np.concatenate([booked.owned, booked.idle.ns]) if booked.on_device else booked.owned
    start = np.concatenate([booked.start, booked.idle.start]) if booked.on_device else booked.start
    inside = booked.full(start)
    sums = np.bincount(keys[inside], weights=ns[inside], minlength=len(booked.pairs))
    spent: dict[str, int] = {}
    for (account, _), total in zip(booked.pairs, sums.tolist()):
        if account.kind not in ("comm", "straggler"):
            spent[str(account)] = spent.get(str(account), 0) + int(total) // booked.steps
    return spent
