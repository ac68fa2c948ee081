"""launch_bound: the device is idle because the host has not given it work.

What it does: sums the launch gaps that no more specific rule claims (syncs, allocation, garbage collection,
compilation, the optimizer, runs of tiny kernels). A straggler's gaps are left to the straggler rule. The rule is
certain only if the time is at the same places of each step: a disturbance of the host hits other places in each, and a
long stop outside of recorded calls has a cause that the file does not show.
Why it matters: faster kernels gain nothing while the host is the bottleneck.
Example: 168 ms of a 222 ms step pass while the host is inside framework and driver launch code.
Remedy: fewer, larger kernels (compile, CUDA graphs), and less Python between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard import units, words
from trainyard.booked import Booked
from trainyard.change import RowChange
from trainyard.detect.code_shares import main_code
from trainyard.detect.communication.straggler import culprit_of
from trainyard.detect.confidence import confidence, doubt_of_recurrence
from trainyard.detect.finding_text import finding, matters, mean_per_step, sum_by_key
from trainyard.detect.host_blame import time_by_culprit, top_culprits
from trainyard.detect.idle_gaps import Claimant, claimed_idle_rows
from trainyard.detect.largest_intervals import LargestIntervals, largest_idle
from trainyard.detect.regularity import atypical_fraction, regular_fraction
from trainyard.detect.row_changes import row_change
from trainyard.events import I64, NOTE
from trainyard.finding import CodeShare, Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

_MIN_STEP_FRACTION = 0.03
_MAIN_FRACTION = 0.5  # of the cost: an account that has more is "most" of it
_HOST_BUSY = ("python", "host", "launch")
"""Subdivisions of launch_gap in which the host is busy; in the others the work is already launched."""
_CLAIMED_BY_OTHER_RULES = ("sync", "alloc", "gc", "compile", "init", "edge")
"""Subdivisions of launch_gap with a rule of their own."""
_STOP_NS = 3_000_000
"""Between two launches of ordinary code pass microseconds; a host that launches nothing for this long does or awaits
something else."""
_IRREGULAR_DOUBT = 0.7  # that the program is not the cause, if none of the time recurs at its position
_SINGLE_GAP_DOUBT = 0.6  # that one long gap is a property of the program, which launches hundreds of kernels
_UNSEEN_STOP_DOUBT = 0.6  # that a stop of the host outside of recorded calls and frames is not slow code
_FEW_STEPS_DOUBT = 0.2  # if the file has too few steps to compare places
_QUEUE_DOUBT = 0.7  # that work which was launched in time waits for something that the file does not show


class LaunchBound:
    rule = "launch_bound"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """Idle time of the device that no other rule claims, without the rank that makes the others wait.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        late = culprit_of(ledger, ranks)
        other_ranks = [rank for rank in ranks or () if rank.events.rank != late]
        gap_ns = _gaps_from_ranks(other_ranks) if other_ranks else _gaps_from_ledger(ledger)
        cost_ns = sum(gap_ns.values())
        if not matters(ledger, cost_ns, _MIN_STEP_FRACTION):
            return ()
        account = max(gap_ns, key=lambda account: gap_ns[account])
        causes = ", ".join(
            f"{_label(account)} {units.show_time(ns)}"
            for account, ns in sorted(gap_ns.items(), key=lambda item: -item[1])[:3]
        )
        idler = "device" if not ranks or any(rank.on_device for rank in ranks) else "training thread"
        mostly = f", mostly {_label(account)}," if gap_ns[account] > _MAIN_FRACTION * cost_ns else ""
        rows_by_rank = [claimed_idle_rows(rank, Claimant.HOST) for rank in other_ranks]
        largest = largest_idle(other_ranks, rows_by_rank)
        doubts = _doubts(account.what, other_ranks, rows_by_rank, largest)
        return finding(
            self.rule,
            ledger,
            account,
            cost_ns,
            f"Idle time of the {idler}{mostly} costs",
            evidence="; ".join(
                filter(
                    None,
                    (
                        f"without rank {late}, which arrives last" if other_ranks and late is not None else "",
                        causes,
                        _describe_culprits(other_ranks) if account.what in _HOST_BUSY else "",
                        *(doubt.text for doubt in doubts),
                    ),
                )
            ),
            remedy=_remedy(account.what, other_ranks, doubts, _code_of_stops(other_ranks, rows_by_rank, largest)),
            confidence=confidence(*(doubt.probability for doubt in doubts)) if other_ranks else _SURE_WITHOUT_RANKS,
            largest=largest,
            change=_change_without_gaps(self.rule, ranks or (), cost_ns),
        )


_SURE_WITHOUT_RANKS = 0.7


class _Doubt(NamedTuple):
    """A reason why host code may not be the cause of the idle time. `probability`: that it applies, 0 to 1; `text`: as
    evidence, empty for a small doubt; `remedy`: the next step if the doubt is the largest one."""

    probability: float
    text: str
    remedy: str


def _doubts(
    cause: str, ranks: Sequence[Booked], rows_by_rank: Sequence[I64], largest: LargestIntervals | None
) -> list[_Doubt]:
    """The doubts about the finding, as arguments of `confidence`. `cause`: the main account of the idle time, a key of
    words.GAPS; `rows_by_rank`: its rows in `Booked.idle` of each rank; `largest`: its largest intervals, if any."""
    if not ranks:
        return []
    recurrence = doubt_of_recurrence(largest.steps_with, largest.steps, largest.is_single) if largest else 0.0
    doubts = [_Doubt(recurrence, "", "")]
    if cause not in _HOST_BUSY:
        in_graph = _fraction_in_graphs(ranks, rows_by_rank)
        text = "the file does not show why the launched work waited" if in_graph < 0.5 else ""
        return [*doubts, _Doubt(_QUEUE_DOUBT * (1 - in_graph), text, "")]
    fractions = [regular_fraction(rank, rows) for rank, rows in zip(ranks, rows_by_rank)]
    known = [fraction for fraction in fractions if fraction is not None]
    atypical = sum(atypical_fraction(rank, rows) for rank, rows in zip(ranks, rows_by_rank)) / len(ranks)
    text = ""
    if known:
        regular = sum(known) / len(known)
        irregular = min(1.0, (1 - regular) * (1 + atypical))
        if regular < 0.5:
            share = units.show_share(round(regular * 1000), 1000, 0)
            text = f"only {share} of it is at the same places of each step"
    else:
        irregular = atypical
        doubts.append(_Doubt(_FEW_STEPS_DOUBT, "", ""))
    if not text and irregular > 0.5:
        text = "most of it is in a few calls that take far longer than others of their name"
    doubts.append(_Doubt(_IRREGULAR_DOUBT * irregular, text, _LOOK_FOR_INTERFERENCE))
    if largest and largest.is_single:
        doubts.append(_Doubt(_SINGLE_GAP_DOUBT, "", ""))
    located = sum(share.share for share in largest.code) if largest and main_code(largest.code) else 0.0
    stopped = _stop_fraction(ranks, rows_by_rank) * (1 - min(1.0, located))
    text = "the file does not show why the host stopped for its longest gaps" if stopped > 0.5 else ""
    return [*doubts, _Doubt(_UNSEEN_STOP_DOUBT * stopped, text, _RECORD_STACKS)]


_LOOK_FOR_INTERFERENCE = (
    "Look for disturbances of the host: other processes, threads that share a lock (the interpreter's), paging."
)
_RECORD_STACKS = (
    "Record stacks (`trainyard run --stacks`, a sampling profiler, or with_stack=True in PyTorch) to see why the host "
    "stops."
)


def _remedy(cause: str, ranks: Sequence[Booked], doubts: Sequence[_Doubt], code: Sequence[CodeShare]) -> str:
    """The remedy for the main cause of the idle time (a key of words.GAPS), or the next step if it is doubtful. `code`:
    the functions in which the host stops."""
    explained = [doubt for doubt in doubts if doubt.remedy and doubt.text]
    if explained:
        return max(explained, key=lambda doubt: doubt.probability).remedy
    is_torch = not ranks or any(rank.events.shows_torch for rank in ranks)
    main = main_code(code)
    if cause == "python" and main and main.location.function != "<module>":
        return f"Move the work of {main.location.function} out of the step: do it ahead of time, or in another process."
    if cause == "python":
        ahead = "compile it, or do its work ahead of time" if is_torch else "do its work ahead of time"
        return f"Move Python out of the step: {ahead}."
    if cause == "host":
        return "Launch the next work earlier: move the host's own work out of the way, or overlap it with the device's."
    if cause == "launch":
        ways = "torch.compile, CUDA graphs, fused or foreach optimizers" if is_torch else "fuse them, or replay a graph"
        return f"Launch fewer, larger kernels: {ways}."
    if cause == "queue":
        return "Work was launched but started late: check launch latency, stream priorities and dependencies."
    return "A stream waits for another one: check the events between them."


def _code_of_stops(
    ranks: Sequence[Booked], rows_by_rank: Sequence[I64], largest: LargestIntervals | None
) -> tuple[CodeShare, ...]:
    """The functions in which the time was spent, if most of it is in long stops of the host: short ones between ops are
    the cost of Python in general. `rows_by_rank`: rows in `idle`; `largest`: its largest intervals."""
    idle_ns = [rank.idle.ns[rows] for rank, rows in zip(ranks, rows_by_rank)]
    stopped_ns = sum(int(ns[ns >= _STOP_NS].sum()) for ns in idle_ns)
    is_stop = stopped_ns > _MAIN_FRACTION * sum(int(ns.sum()) for ns in idle_ns)
    return largest.code if largest and is_stop else ()


def _stop_fraction(ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> float:
    """The fraction of the idle time in long stops of the host with no op, call or Python frame open."""
    stopped_ns = total_ns = 0
    for rank, rows in zip(ranks, rows_by_rank):
        idle, host = rank.idle, rank.events.host
        total_ns += int(idle.ns[rows].sum())
        is_recorded = np.append(host.what != NOTE, False)[idle.host[rows]]  # NOTE: an annotation; -1, none: False
        is_stop = (idle.ns[rows] >= _STOP_NS) & ~is_recorded
        stopped_ns += int(idle.ns[rows[is_stop]].sum())
    return stopped_ns / total_ns if total_ns else 0.0


def _fraction_in_graphs(ranks: Sequence[Booked], rows_by_rank: Sequence[I64]) -> float:
    """The fraction of the idle time that precedes work launched by a CUDA graph: gaps between the graph's kernels.
    `rows_by_rank`: for each rank, rows of `idle`, whose `next` is the work that ends the idle time."""
    graph_ns = total_ns = 0
    for rank, rows in zip(ranks, rows_by_rank):
        # Host row that launched the work after each gap; an appended element stands for the index -1 (none).
        launcher = np.append(rank.launcher, -1)[rank.idle.next[rows]]
        launches_graph = rank.names(_GRAPH_LAUNCH.match)[np.append(rank.events.host.name, -1)[launcher]]
        graph_ns += int(rank.idle.ns[rows[launches_graph]].sum())
        total_ns += int(rank.idle.ns[rows].sum())
    return graph_ns / total_ns if total_ns else 0.0


_GRAPH_LAUNCH = re.compile(r"(cuda|cu|hip)GraphLaunch")


def _change_without_gaps(rule: str, ranks: Sequence[Booked], cost_ns: int) -> RowChange:
    """The change in which the gaps vanish, on all ranks: a remedy changes the program of all. A rank with more than
    `cost_ns` of gaps a step keeps the excess, which makes it a straggler."""
    gaps_by_rank = [claimed_idle_rows(rank, Claimant.HOST) for rank in ranks]
    gap_ns = [int(rank.idle.ns[gaps].sum()) // rank.steps for rank, gaps in zip(ranks, gaps_by_rank)]
    return row_change(rule, ranks, idle=gaps_by_rank, idle_removed=[min(1.0, cost_ns / max(1, ns)) for ns in gap_ns])


def _gaps_from_ledger(ledger: Ledger) -> dict[Account, int]:
    """Account -> ns a step of the launch gaps that no other rule claims."""
    return {
        account: ns
        for account, ns in ledger.by_account().items()
        if account.kind == "launch_gap" and account.what not in _CLAIMED_BY_OTHER_RULES
    }


def _gaps_from_ranks(ranks: Sequence[Booked]) -> dict[Account, int]:
    """Account -> ns a step of the launch gaps, mean over `ranks`, without gaps that other rules claim by their
    circumstances (unfused optimizers, ...)."""
    ns_by_account: dict[Account, int] = {}
    for rank in ranks:
        gaps = claimed_idle_rows(rank, Claimant.HOST)
        for key, ns in enumerate(sum_by_key(rank.idle.key[gaps], rank.idle.ns[gaps])):
            if ns:
                account = rank.pairs[key][0]
                ns_by_account[account] = ns_by_account.get(account, 0) + ns
    return {account: mean_per_step(ranks, [ns]) for account, ns in ns_by_account.items()}


def _describe_culprits(ranks: Sequence[Booked]) -> str:
    """The code in which the busy host spends the gaps, as evidence."""
    gaps_by_rank = [_select_host_busy(rank) for rank in ranks]
    culprits = top_culprits(
        [time_by_culprit(rank, rank.idle.host[gaps], rank.idle.ns[gaps]) for rank, gaps in zip(ranks, gaps_by_rank)],
        sum(rank.steps for rank in ranks),
    )
    return "in " + ", ".join(f"{name} ({units.show_time(ns)})" for name, ns in culprits) if culprits else ""


def _select_host_busy(booked: Booked) -> I64:
    """Rows in `booked.idle` of the gaps in which the host had not yet launched the next work."""
    gaps = claimed_idle_rows(booked, Claimant.HOST)
    return gaps[booked.keys(lambda account, _: account.what in _HOST_BUSY)[booked.idle.key[gaps]]]


def _label(account: Account) -> str:
    """The name of a launch gap without the prefix that all of them have."""
    return words.GAPS[account.what].label.removeprefix("Idle: ")
