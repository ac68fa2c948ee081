"""Words on ties, on the baseline and on folded variants in the tables of plans.

Two layouts are tied if the 80 % prediction interval of the ratio of their steps includes 1.
"""

from __future__ import annotations

from trainyard.layout import Layout
from trainyard.report.plans.plans_file import PlanRecord, Plans
from trainyard.report.view.view import Cell, Column
from trainyard.units import duration_unit, show_dollars

VERSUS = "vs. fastest"
"""Title of the column that compares each layout with the fastest."""
_TIED = "Tied: the prediction cannot show which is faster."
_ORDER = "Tied layouts come first, the simplest at the top. Slower layouts that are not listed may be tied too."
_FOLDED = (
    "Each row is the fastest of its variants, which differ in micro-batch size, pipeline schedule or interleave only."
)


def has_ratios(plans: Plans) -> bool:
    """Whether the layouts are compared with the fastest, which they are not for a mixed cluster."""
    return any(record.versus_fastest for record in plans.choices)


def versus_columns(plans: Plans) -> tuple[Column, ...]:
    """The column of `versus_cells`; none for a mixed cluster."""
    return (Column(title=VERSUS, id=True),) if has_ratios(plans) else ()


def versus_cells(record: PlanRecord, plans: Plans) -> tuple[Cell, ...]:
    """`fastest`, `tied`, or by how much a layout is slower than the fastest."""
    if not has_ratios(plans):
        return ()
    return (_versus(record),)


def _versus(record: PlanRecord) -> str:
    if record.versus_fastest is None:
        return ""
    if record.is_fastest or record.is_tied:
        return "fastest" if record.is_fastest else "tied"
    return f"{100 * (record.versus_fastest.ratio - 1):+.1f} %"


def headline_subject(plans: Plans) -> str:
    """The first words of a summary: which layout it describes."""
    if plans.as_configured:
        return "As configured"
    if plans.fit_in_memory == 1:
        return "The only layout that fits"
    is_fastest = plans.best.is_fastest or not has_ratios(plans)
    return f"{'Fastest' if is_fastest else 'Recommended'} of {plans.fit_in_memory:,} layouts that fit"


def with_fixed(plans: Plans) -> str:
    """The values that `--fix` gives all searched layouts, ` with tp = 8 and dtype = float8`; empty if none is fixed."""
    fixed = " and ".join(f"{axis} = {value}" for axis, value in plans.fixed.items())
    return fixed and f" with {fixed}"


def describe_ties(plans: Plans) -> str:
    """A sentence on the layouts that are tied with the fastest, if the first is the recommended one and there are any.
    The fastest is marked in the table."""
    tied = _count_tied(plans)
    if plans.as_configured or tied < 2:
        return ""
    if plans.best.is_fastest:
        others = "1 other layout is" if tied == 2 else f"{tied - 1} other layouts are"
        return f" At least {others} tied with it (--full), of which it is the simplest."
    return (
        f" It is the simplest layout that is tied with the fastest, which is predicted to take "
        f"{less_time(plans.fastest, plans.best)} less time{_budget_of_fastest(plans)}."
    )


def _budget_of_fastest(plans: Plans) -> str:
    """Duration and dollars of the token budget with the fastest layout, in the unit of the first one; empty without a
    budget."""
    bill = plans.fastest.bill
    if not plans.tokens:
        return ""
    per_day, unit = duration_unit(plans.best.bill.days)
    dollars = "" if bill.dollars is None else f" and {show_dollars(bill.dollars)}"
    return f": {per_day * bill.days:,.1f} {unit}{dollars}"


def _count_tied(plans: Plans) -> int:
    """The number of searched layouts that are tied with the fastest, which is one of them: slower ones that were not
    simulated may be tied too."""
    return sum(record.is_tied for record in plans.searched_choices)


def less_time(faster: PlanRecord, slower: PlanRecord) -> str:
    """By how many percent one step is shorter than the other."""
    percent = 100 * (1 - faster.plan.ledger.wall_ns / slower.plan.ledger.wall_ns)
    return "<0.1 %" if 0 < percent < 0.05 else f"{percent:.1f} %"


def baseline_mark(record: PlanRecord) -> str:
    """What follows the name of the layout that is the baseline."""
    return " (baseline)" if record.baseline else ""


def tie_note(plans: Plans) -> str:
    """The meaning of tied, if there are tied layouts."""
    return _TIED * (_count_tied(plans) > 1)


def baseline_notes(plans: Plans) -> tuple[str, ...]:
    """A sentence on the baseline, or on why there is none, if layouts are compared with it."""
    baselines = [_describe_baseline(record) for record in plans.searched_choices if record.baseline]
    return (*baselines, *filter(None, (plans.no_baseline,)))


def notes(plans: Plans) -> tuple[str, ...]:
    """Sentences on ties, the baseline, the order of the rows and folded variants."""
    folded = any(record.folded for record in plans.searched_choices)
    return (
        *filter(None, (tie_note(plans),)),
        *baseline_notes(plans),
        *((_ORDER,) * (_count_tied(plans) > 1)),
        *((_FOLDED,) * folded),
    )


def _describe_baseline(record: PlanRecord) -> str:
    """The kind of data parallelism of the baseline, and how it compares with the fastest layout."""
    slower = 100 * (record.versus_fastest.ratio - 1) if record.versus_fastest else 0.0
    compared = "the fastest" if record.is_fastest else f"{slower:.1f} % slower than the fastest"
    return f"Baseline: plain {_kind(record.plan.job.layout)}, {compared}."


def _kind(layout: Layout) -> str:
    """The usual name of plain data parallelism."""
    if layout.dp_shard == 1:
        return "DDP"
    return "FSDP" if layout.zero == 3 else f"data parallelism with ZeRO-{layout.zero}"
