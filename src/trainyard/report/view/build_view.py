"""Builds the view of an analysis, which the terminal and the page render: bars of the mean step ledger, a heat map of
accounts by rank, and the tables. An account is a category of time, such as `comm/all_gather@dp_shard`."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from trainyard import __version__, units, words
from trainyard.detect.communication.straggler import late_rank
from trainyard.ledger import Ledger
from trainyard.report.view.account_times import account_times, per_rank
from trainyard.report.view.analysis import Analysis
from trainyard.report.view.rank_groups import group_ranks
from trainyard.report.view.view import Heat, RankGroups, Timeline, View
from trainyard.report.view.waterfall import waterfall
from trainyard.report.view.what_if_section import WhatIfSection
from trainyard.stats.medians import median
from trainyard.trace.measure import MAX_RANKS_IN_DETAIL


def view_of(analysis: Analysis, timeline: Timeline | None = None, what_if: WhatIfSection | None = None) -> View:
    """The view of an analysis. `timeline`, `what_if`: those of its trace; None if they are not drawn, as on a
    terminal."""
    mean, ranks = analysis.mean, per_rank(analysis.ledgers)
    groups = timeline.groups if timeline else None
    if groups is None and len(ranks) > MAX_RANKS_IN_DETAIL:
        groups = group_ranks(ranks, mean)
    is_stored_run = bool(analysis.state)
    noun = "inferred step" if analysis.steps and analysis.steps.how == "inferred" else "step"
    return View(
        title=analysis.headline,
        subtitle=analysis.subject,
        chips=(analysis.source, analysis.state) if is_stored_run else (analysis.source,),
        figures=analysis.figures,
        wall_ns=mean.wall_ns,
        bars=waterfall(mean, ranks, analysis.kernels, analysis.ideal, profiled=is_stored_run),
        bars_note=_bars_note(mean, noun, ranks),
        heat=_heat(mean, ranks, groups),
        timeline=timeline,
        groups=groups,
        what_if=what_if,
        charts=analysis.charts,
        findings=analysis.findings,
        kernels=analysis.kernels,
        modules=analysis.modules,
        tables=analysis.tables,
        table=tuple(
            (str(entry.account), entry.account.label, entry.phase, entry.ns, entry.hidden_ns, entry.count)
            for entry in mean.sorted_entries()
        ),
        warnings=analysis.warnings,
        notes=analysis.notes,
        limits=analysis.limits,
        terms=tuple(f"{words.KINDS[kind].label}: {words.KINDS[kind].means}" for kind in mean.by_kind()),
        generated=f"trainyard {__version__}",
    )


def _bars_note(mean: Ledger, noun: str, ranks_in_all: Collection[int]) -> str:
    """The sentence above the bars: their sum in ns and the steps and ranks that it is a mean of. `noun`: for a step;
    `ranks_in_all`: of which those without a full step are left out of the mean."""
    scope = mean.scope
    steps, ranks = units.counted(len(scope.steps), noun), units.counted(len(scope.ranks), "rank")
    spread = "; whiskers: least and most of any rank" if len(scope.ranks) > 1 else ""
    total = units.show_ns(mean.wall_ns)
    left_out = sorted(set(ranks_in_all) - set(scope.ranks))
    without = f", without {units.show_ranks(left_out)}" if left_out and scope.ranks else ""
    return f"every nanosecond accounted for: the rows add up to {total} ns; mean of {steps}, {ranks}{without}{spread}"


def _heat(mean: Ledger, ranks: dict[int, Ledger], groups: RankGroups | None) -> Heat | None:
    """Time in ns of each larger account of the mean step on each rank, and its difference from the ranks' median; None
    for fewer than two ranks. `ranks`: rank -> its mean ledger; `groups`: with the hosts of many ranks."""
    if len(ranks) < 2:
        return None
    times = account_times(ranks, mean)
    medians = np.array([int(median(row)) for row in times.ns.tolist()], np.int64)
    late = late_rank(mean)
    hosts = {rank: group.label for group in (groups.hosts if groups else ()) for rank in group.ranks}
    return Heat(
        accounts=tuple(str(account) for account in times.accounts),
        labels=tuple(account.label for account in times.accounts),
        ranks=times.ranks,
        nodes=tuple(hosts.get(rank, "") for rank in ranks),
        values=tuple(map(tuple, times.ns.tolist())),
        deviations=tuple(map(tuple, (times.ns - medians[:, None]).tolist())),
        blamed=-1 if late is None else late,
    )
