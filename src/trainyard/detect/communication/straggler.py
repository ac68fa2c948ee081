"""straggler: one rank arrives late at collectives and makes the others wait.

What it does: finds the rank that causes most of the waiting in collectives in most steps, and names the account in
which it differs from the others. The cost is at most the time that each of
the others waits for it: without it, they may wait for the next one.
Why it matters: every rank is as slow as the slowest; the late rank itself often shows the shortest step.
Example: in an 8-rank job rank 7 is the last to arrive at 5 of its 8 collectives, and its own step is the shortest.
Remedy: look at that rank's host, device clocks and share of the work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb

import numpy as np
from msgspec.structs import replace

from trainyard import units
from trainyard.booked import Booked
from trainyard.change import Change
from trainyard.detect.code_shares import code_shares, describe_main_code, idle_time
from trainyard.detect.communication.own_time import doubt_of_kernels, explained_fraction
from trainyard.detect.confidence import confidence
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.largest_intervals import largest_waits
from trainyard.detect.select_events import select_idle
from trainyard.finding import CodeShare, Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run
from trainyard.stats.medians import median

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

_MIN_SHARE = 0.4  # of all waiting: from this fraction on, one rank is named; below it, ranks were late in turn
_MIN_OVER_FAIR_SHARE = 1.5  # times the share of a rank if all were late in turn: of two ranks one is named from 75 % on
_MIN_LEAD = 1.5  # times the waiting caused by the next rank: if two are equally late, neither is named
_MIN_STEPS_FRACTION = 0.75  # of the full steps, in which it causes the most waiting: a host hiccup is not a straggler
_BEHIND_DOUBT = 0.7  # that a rank whose own work is not longer is only behind the others, and not slower
_UNKNOWN_OWN_DOUBT = 0.3  # the same if its own work cannot be compared
_MIN_STEP_FRACTION = 0.05  # of the step's time: identical devices differ by a few per cent


class Straggler:
    rule = "straggler"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The rank that causes most of the waiting; the cost is the mean waiting of the other ranks.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        rank_late = culprit_of(ledger, ranks)
        if rank_late is None:
            return ()
        waits = {account: ns for account, ns in ledger.by_account().items() if account.kind == "straggler"}
        total_late_ns = sum(ledger.late.values())
        shares = ", ".join(
            f"rank {rank} {units.show_share(ns, total_late_ns, 0)}"
            for rank, ns in sorted(ledger.late.items(), key=lambda item: -item[1])[:4]
        )
        account, excess_ns = _largest_difference(rank_late, ranks or ())
        differs, code = "", _code_of(rank_late, ranks or (), account)
        if account:
            label = Account.parse(account).label
            differs = f"; it spends {units.show_time(excess_ns)} more than the others on {label}"
            differs += describe_main_code(code)
        (late_finding,) = finding(
            self.rule,
            ledger,
            max(waits, key=lambda account: waits[account]),
            wait_ns_per_other_rank(ledger, rank_late),
            f"Rank {rank_late} arrives last {_describe_arrivals(rank_late, ranks or ())}, which costs",
            evidence=f"waiting caused: {shares}{differs}",
            remedy=f"Compare rank {rank_late} with the others: its host, device clocks and share of the work.",
            confidence=_confidence(ledger, rank_late, ranks),
            largest=largest_waits(ranks or ()),
            change=removal_of(rank_late),
        )
        return (replace(late_finding, code=code),)


def _confidence(ledger: Ledger, late: int, ranks: Sequence[Booked] | None) -> float:
    """The confidence that rank `late` is slower than the others: the larger of that from its own work in each step and
    that from the lengths of its kernels. Without `ranks`, from the number of steps."""
    steps = len(ledger.scope.steps)
    if not ranks:
        return round(0.95 * steps / (steps + 1), 2)
    late_ns_by_step = _late_ns_by_step(ranks)
    worst = sum(max(late_ns, key=lambda rank: late_ns[rank]) == late for late_ns in late_ns_by_step.values())
    by_chance = _chance_of_worst(worst, len(late_ns_by_step), _rank_count(ledger))
    wait_ns = wait_ns_per_other_rank(ledger, late)
    explained = explained_fraction(ranks, late, wait_ns)
    unexplained_doubt = _UNKNOWN_OWN_DOUBT if explained is None else _BEHIND_DOUBT * (1 - min(1.0, 2 * explained))
    return max(
        confidence(by_chance / (by_chance + 1), unexplained_doubt), confidence(doubt_of_kernels(ranks, late, wait_ns))
    )


def doubt_of_chance(ranks: Sequence[Booked], rank_count: int) -> float:
    """The probability (0 to 0.5) that the rank which is the worst in most steps is so by chance."""
    late_ns_by_step = _late_ns_by_step(ranks)
    worst = Counter(max(late_ns, key=lambda rank: late_ns[rank]) for late_ns in late_ns_by_step.values())
    by_chance = _chance_of_worst(max(worst.values(), default=0), len(late_ns_by_step), rank_count)
    return by_chance / (by_chance + 1)


def _chance_of_worst(times: int, steps: int, ranks: int) -> float:
    """The probability that some of `ranks` ranks is the worst in at least `times` of `steps` steps if all are equally
    fast: the binomial tail for one rank, times the number of ranks."""
    share = 1 / ranks
    tail = sum(comb(steps, k) * share**k * (1 - share) ** (steps - k) for k in range(times, steps + 1))
    return min(1.0, ranks * tail)


def late_rank(ledger: Ledger) -> int | None:
    """The rank that causes most of the waiting; None if no rank causes clearly more than the others (see `_MIN_SHARE`,
    `_MIN_OVER_FAIR_SHARE`, `_MIN_LEAD`) or the waiting is small. `ledger.late`: rank -> ns for which the others wait
    for it."""
    if not sum(ledger.late.values()):
        return None
    (rank, ns), *following = sorted(ledger.late.items(), key=lambda item: -item[1])
    min_share = max(_MIN_SHARE, _MIN_OVER_FAIR_SHARE / _rank_count(ledger))
    leads = not following or ns >= _MIN_LEAD * following[0][1]
    is_clear = leads and ns >= min_share * sum(ledger.late.values())
    return rank if is_clear and matters(ledger, wait_ns_per_other_rank(ledger, rank), _MIN_STEP_FRACTION) else None


def removal_of(rank: int) -> Change:
    """The change after which a rank is as fast as the others."""
    return Change(text=f"rank:{rank}=typical")


def culprit_of(ledger: Ledger, ranks: Sequence[Booked] | None) -> int | None:
    """The rank that causes most of the waiting; None if no rank does so clearly, or if it is not also the worst in most
    steps of `ranks`."""
    rank = late_rank(ledger)
    if rank is None or not ranks:
        return rank
    by_step = _late_ns_by_step(ranks).values()
    is_worst = [max(late_ns, key=lambda late: late_ns[late]) == rank for late_ns in by_step]
    return rank if sum(is_worst) >= _MIN_STEPS_FRACTION * len(is_worst) else None


def _late_ns_by_step(ranks: Sequence[Booked]) -> dict[str, dict[int, int]]:
    """Step label -> rank -> ns for which the others wait for it, for the steps in which they wait."""
    late_ns_by_step: dict[str, dict[int, int]] = {}
    for booked in ranks:
        waits = booked.waits
        in_collective = booked.keys(lambda account, _: account.kind == "straggler")
        step_index = np.where(in_collective[waits.key], booked.step_of(waits.start), -1)
        for index, late, ns in zip(step_index.tolist(), waits.late.tolist(), waits.ns.tolist()):
            if index >= 0:
                late_ns = late_ns_by_step.setdefault(booked.parts[index].label, {})
                late_ns[late] = late_ns.get(late, 0) + ns
    return late_ns_by_step


def wait_ns_per_other_rank(ledger: Ledger, rank: int) -> int:
    """ns a step that each of the other ranks waits for `rank`, on average: the time by which a step would be shorter.

    The mean ledger averages the waiting over all n ranks, including the late one, hence the factor n / (n - 1); the
    part of it that `rank` causes is its share of `ledger.late` (rank -> ns for which the others wait for it).
    """
    rank_count = _rank_count(ledger)
    waited_ns = ledger.by_kind().get("straggler", 0)
    return waited_ns * rank_count * ledger.late.get(rank, 0) // ((rank_count - 1) * sum(ledger.late.values()))


def waits_of_others_ns(ledger: Ledger, rank: int | None) -> int:
    """ns per step of the mean ledger's waiting for late ranks that ranks other than `rank` cause; all of it if `rank`
    is None. `ledger.late`: rank -> ns for which the others wait for it."""
    waited_ns, total_late_ns = ledger.by_kind().get("straggler", 0), sum(ledger.late.values())
    if rank is None or not total_late_ns:
        return waited_ns
    return waited_ns - waited_ns * ledger.late.get(rank, 0) // total_late_ns


def _rank_count(ledger: Ledger) -> int:
    """Number of ranks of a ledger, at least 2: one waits and one is waited for."""
    return max(len(ledger.scope.ranks), len(ledger.late), 2)


def _describe_arrivals(late: int, ranks: Sequence[Booked]) -> str:
    """How often the late rank was the last to arrive: `at 5 of 8 collectives`."""
    profile = next((booked for booked in ranks if booked.events.rank == late), None)  # `met`, `last`: its collectives
    if not profile or not profile.met:
        return "most often"
    return f"at {profile.last} of {units.counted(profile.met, 'collective')}"


def _largest_difference(late: int, ranks: Sequence[Booked]) -> tuple[str, int]:
    """(account, ns a step): the account in which the late rank exceeds the others' median most, and by how much. An
    account is a category of a step's time as text, such as `compute/matmul`: here those of compute, copies and launch
    gaps. The text is empty if the rank exceeds the others in none. `late`: number of the late rank; `ranks`: the
    profiles of all ranks, the late one included."""
    # Account in text form -> ns a step: of the late rank, and of each other rank.
    late_ns: dict[str, int] = {}
    other_ns: dict[str, list[int]] = {}
    for booked in ranks:
        ns_by_account = _ns_by_account(booked)
        if booked.events.rank == late:
            late_ns = ns_by_account
        else:
            for account, ns in ns_by_account.items():
                other_ns.setdefault(account, []).append(ns)
    excess_ns = {account: ns - int(median(other_ns.get(account, [0]))) for account, ns in late_ns.items()}
    account = max(excess_ns, key=lambda account: excess_ns[account], default="")
    if not account or excess_ns[account] <= 0:
        return "", 0
    return account, excess_ns[account]


def _code_of(late: int, ranks: Sequence[Booked], account: str) -> tuple[CodeShare, ...]:
    """The functions in which the late rank's host spends the time of an account; empty if it is not idle time."""
    late_ranks = [rank for rank in ranks if rank.events.rank == late]
    times = [idle_time(rank, select_idle(rank, lambda own: str(own) == account)) for rank in late_ranks]
    return code_shares(late_ranks, times)


def _ns_by_account(booked: Booked) -> dict[str, int]:
    """Account in text form -> ns a step of the rank, without communication and straggler waits."""
    keys = np.concatenate([booked.key, booked.idle.key]) if booked.on_device else booked.key
    ns = np.concatenate([booked.owned, booked.idle.ns]) if booked.on_device else booked.owned
    start = np.concatenate([booked.start, booked.idle.start]) if booked.on_device else booked.start
    in_full_step = booked.full(start)
    ns_by_key = np.bincount(keys[in_full_step], weights=ns[in_full_step], minlength=len(booked.pairs))
    ns_by_account: dict[str, int] = {}
    for (account, _), total in zip(booked.pairs, ns_by_key.tolist()):
        if account.kind not in ("comm", "straggler"):
            ns_by_account[str(account)] = ns_by_account.get(str(account), 0) + int(total) // booked.steps
    return ns_by_account
