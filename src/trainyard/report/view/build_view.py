"""Builds the view of an analysis, which the terminal and the page render: bars of the mean step ledger, a heat map of
accounts by rank, and the tables. An account is a category of time, such as `comm/all_gather@dp_shard`."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import __version__, units, words
from trainyard import ledger as ledgers_of
from trainyard.detect.communication.straggler import late_rank
from trainyard.ledger import Ledger
from trainyard.report.view.analysis import Analysis
from trainyard.report.view.view import Heat, Timeline, View
from trainyard.report.view.waterfall import SMALL, waterfall
from trainyard.stats.medians import median


def view_of(analysis: Analysis, timeline: Timeline | None = None) -> View:
    """The view of an analysis. `timeline`: that of its trace; None if it is not drawn, as on a terminal."""
    mean, ranks = analysis.mean, per_rank(analysis.ledgers)
    is_stored_run = bool(analysis.state)
    return View(
        title=analysis.headline,
        subtitle=analysis.subject,
        chips=(analysis.source, analysis.state) if is_stored_run else (analysis.source,),
        figures=analysis.figures,
        wall_ns=mean.wall_ns,
        bars=waterfall(mean, ranks, analysis.kernels, analysis.ideal, profiled=is_stored_run),
        bars_note=_bars_note(mean, "inferred step" if analysis.steps and analysis.steps.how == "inferred" else "step"),
        heat=_heat(mean, ranks),
        timeline=timeline,
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


def per_rank(ledgers: Sequence[Ledger]) -> dict[int, Ledger]:
    """Rank -> the mean ledger of its full steps, or of all its parts if none is full. `ledgers`: one for each rank and
    step; others are ignored."""
    by_rank: dict[int, list[Ledger]] = {}
    for ledger in ledgers:
        if ledger.scope.reduce == "one" and ledger.scope.ranks:
            by_rank.setdefault(ledger.scope.ranks[0], []).append(ledger)
    return {
        rank: ledgers_of.mean([ledger for ledger in rank_ledgers if not ledger.scope.partial] or rank_ledgers)
        for rank, rank_ledgers in sorted(by_rank.items())
    }


def _bars_note(mean: Ledger, noun: str) -> str:
    """The sentence above the bars: their sum in ns and the steps and ranks that it is a mean of. `noun`: for a step."""
    scope = mean.scope
    steps, ranks = units.counted(len(scope.steps), noun), units.counted(len(scope.ranks), "rank")
    spread = "; whiskers: least and most of any rank" if len(scope.ranks) > 1 else ""
    total = units.show_ns(mean.wall_ns)
    return f"every nanosecond accounted for: the rows add up to {total} ns; mean of {steps}, {ranks}{spread}"


def _heat(mean: Ledger, ranks: dict[int, Ledger]) -> Heat | None:
    """Time in ns of each larger account of the mean step on each rank, and its difference from the ranks' median; None
    for fewer than two ranks. `ranks`: rank -> its mean ledger."""
    if len(ranks) < 2:
        return None
    accounts = [account for account, ns in mean.by_account().items() if ns >= SMALL * mean.wall_ns]
    ns_table = [[ledger.by_account().get(account, 0) for ledger in ranks.values()] for account in accounts]
    medians = [int(median(row)) for row in ns_table]
    late = late_rank(mean)
    return Heat(
        accounts=tuple(str(account) for account in accounts),
        labels=tuple(account.label for account in accounts),
        ranks=tuple(ranks),
        nodes=("",) * len(ranks),
        values=tuple(tuple(row) for row in ns_table),
        deviations=tuple(tuple(value - middle for value in row) for row, middle in zip(ns_table, medians)),
        blamed=-1 if late is None else late,
    )
