"""Builds the comparison of two or more runs, each with the first one.

An account is a category of time of a training step, such as `comm/all_gather@dp_shard`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from string import ascii_uppercase

from trainyard import plugins, units, words
from trainyard.compare.comparable import list_differences
from trainyard.errors import BadInput
from trainyard.report.comparison.compared_run import ComparedRun
from trainyard.report.comparison.finding_changes import compare_findings
from trainyard.report.comparison.ledger_rows import arrange_ledgers
from trainyard.report.comparison.plan_check import PlanCheck, check_plan_against
from trainyard.report.comparison.run_facts import FactRow, compare_facts
from trainyard.report.comparison.runs_comparison import RunColumn, RunsComparison
from trainyard.report.comparison.step_series import collect_series
from trainyard.report.plans.plans_file import PlanRecord
from trainyard.report.view.comparison import Comparison, compare, show_change
from trainyard.report.view.key_figures import figure
from trainyard.report.view.view import KeyFigure

MAX_RUNS = 8
"""Runs of a comparison: with more of them, the bars of a row are too thin."""
_LONGEST_NAME = 64
"""Characters of a run's name above which it is shortened."""
_MOST_CHANGES = 3
"""Accounts that the summary names."""
_SMALL_CHANGE = 0.001
"""Fraction of the step below which a change is not named."""
_LIMITS = (
    "A verdict needs every step of one run to be above, or below, every step of the other: it describes these "
    "recordings and is not a statistical test. trainyard gate run tests for a slowdown with known error rates.",
    "Accounts are of profiled steps, which include the profiler's overhead.",
)
_PLAN_LIMIT = "The prediction interval is of the whole step: the accounts of a plan have none."


def compare_runs(runs: Sequence[ComparedRun]) -> RunsComparison:
    """Compares each run with the first. Raises `BadInput` for fewer than two or more than `MAX_RUNS` runs."""
    if not 2 <= len(runs) <= MAX_RUNS:
        raise BadInput(
            f"{units.counted(len(runs), 'run')} to compare.", f"Pass 2 to {MAX_RUNS}; the first is the base."
        )
    runs = [run.renamed(_shorten(run.name)) for run in runs]
    base, *others = runs
    comparisons = [_compare(base, other) for other in others]
    checks = [check_plan_against(base, other) or check_plan_against(other, base) for other in others]
    facts = compare_facts(runs)
    return RunsComparison(
        headline=_headline(runs, comparisons),
        summary=_summary(comparisons, checks),
        runs=tuple(_column(letter, run) for letter, run in zip(ascii_uppercase, runs)),
        figures=tuple(_figures(runs, comparisons, facts)),
        facts=facts,
        rows=arrange_ledgers([run.side.mean if run.side else None for run in runs], comparisons),
        comparisons=tuple(comparisons),
        findings=tuple(compare_findings(base, other) for other in others),
        plan_checks=tuple(checks),
        series=tuple(collect_series(run.run) for run in runs),
        warnings=tuple(_warnings(runs, comparisons, checks)),
        notes=tuple(_notes(runs, comparisons, checks)),
        limits=(*_LIMITS, *([_PLAN_LIMIT] if any(checks) else [])),
    )


def _shorten(name: str) -> str:
    """The name of a run with its middle left out if it has more than `_LONGEST_NAME` characters."""
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


def _compare(base: ComparedRun, other: ComparedRun) -> Comparison | None:
    """The comparison of two runs; None if one of them has no ledger."""
    return compare(base.side, other.side) if base.side and other.side else None


def _headline(runs: Sequence[ComparedRun], comparisons: Sequence[Comparison | None]) -> str:
    """The change of the step, or of each run's step if there are several."""
    base, *others = runs
    if len(others) == 1:
        comparison = comparisons[0]
        return comparison.headline if comparison else f"{base.name} → {others[0].name}: no ledgers to compare"
    parts = [f"{other.name} {_show_step_change(comparison)}" for other, comparison in zip(others, comparisons)]
    return f"Against {base.name}: {', '.join(parts)}"


def _show_step_change(comparison: Comparison | None) -> str:
    """The change of the step in percent, or why there is none."""
    if comparison is None:
        return "has no ledger to compare"
    if not comparison.comparable:
        return "is not comparable"
    before_ns, after_ns = step_times(comparison)
    change = show_change(after_ns - before_ns, before_ns)
    return f"cannot tell ({change})" if comparison.doubts else change


def step_times(comparison: Comparison) -> tuple[int, int]:
    """(before, after) in ns: the steps timed without the profiler if both were, else the profiled ones."""
    before, after = comparison.before, comparison.after
    return (before.timed_ns, after.timed_ns) if before.timed_ns and after.timed_ns else (before.wall_ns, after.wall_ns)


def _summary(comparisons: Sequence[Comparison | None], checks: Sequence[PlanCheck | None]) -> str:
    """Where the measured step is in the plan's interval, and the largest changes of accounts, for two runs; else
    empty."""
    if len(comparisons) > 1:
        return ""
    sentences = [*(checks[0].sentences[:1] if checks[0] else ()), *_name_changes(comparisons[0])]
    return " ".join(sentences)


def _name_changes(comparison: Comparison | None) -> list[str]:
    """The accounts that changed most, as a sentence; none if the runs cannot be compared."""
    if comparison is None or not comparison.comparable:
        return []
    least_ns = _SMALL_CHANGE * max(comparison.before.wall_ns, comparison.after.wall_ns)
    changes = sorted((c for c in comparison.changes if abs(c.ns) > least_ns), key=lambda change: -abs(change.ns))
    if not changes:
        return [f"No account changed by {100 * _SMALL_CHANGE:g} % of the step or more."]
    named = [
        f"{change.account.label} {'-+'[change.ns > 0]}{units.show_time(abs(change.ns))} "
        f"({words.VERDICTS[change.verdict].label})"
        for change in changes[:_MOST_CHANGES]
    ]
    return [f"Largest changes: {', '.join(named)}."]


def _column(letter: str, compared: ComparedRun) -> RunColumn:
    """The figures of a run that a comparison shows."""
    side, analysis = compared.side, compared.analysis
    plan = side.plan if side else None
    return RunColumn(
        letter=letter,
        name=compared.name,
        kind=compared.kind,
        subject=analysis.subject if analysis else _plan_subject(compared),
        state=compared.run.state if compared.run else "",
        wall_ns=side.mean.wall_ns if side else 0,
        timed_ns=side.timed_ns if side else 0,
        no_ledger=compared.no_ledger,
        figures=analysis.figures if analysis else tuple(_plan_figures(compared_record(compared))) if plan else (),
    )


def compared_record(compared: ComparedRun) -> PlanRecord:
    """The compared one of the plans. Raises `BadInput` if the run is not a plan."""
    if compared.plans is None:
        raise BadInput(f"{compared.name} is not a plan.")
    plan = compared.side.plan if compared.side else None
    return next((record for record in compared.plans.choices if record.plan == plan), compared.plans.best)


def _plan_subject(compared: ComparedRun) -> str:
    """Job, devices, layout and framework of a plan."""
    plans, job = compared.plans, compared_record(compared).plan.job
    devices = f"{plans.devices} × {plans.device or plans.machine}" if plans else ""
    return " · ".join(filter(None, (job.name, devices, str(job.layout), plans.framework if plans else "")))


def _plan_figures(record: PlanRecord) -> list[KeyFigure]:
    """Key figures of a plan under the labels that those of a run have."""
    plan, bill, unit = record.plan, record.bill, plugins.unit_of(record.plan.job)
    interval = f"{units.show_time(plan.low)} to {units.show_time(plan.high)}"
    return [
        figure("step time", units.show_time(plan.ledger.wall_ns), "Predicted, with the 80 % interval.", interval),
        figure("throughput", units.show_rate(bill.tokens_per_s, f" {unit}/s"), f"{unit.capitalize()} of all ranks."),
        KeyFigure(label="MFU", value=f"{100 * bill.mfu:.1f}", unit="%", description="Model FLOPs over the peak."),
        figure("peak memory", units.show_size(sum(plan.memory.values())), "The fullest rank's, allocated."),
    ]


def _figures(
    runs: Sequence[ComparedRun], comparisons: Sequence[Comparison | None], facts: Sequence[FactRow]
) -> list[KeyFigure]:
    """Key figures of the comparison: the step of each run, the accounts by verdict, the settings that differ."""
    base = runs[0].side
    timed = all(run.side is None or run.side.timed_ns for run in runs)
    figures: list[KeyFigure] = []
    for letter, run in zip(ascii_uppercase, runs):
        if run.side is None:
            continue
        base_ns, ns = ((side.timed_ns if timed else side.mean.wall_ns) if side else 0 for side in (base, run.side))
        is_other = base is not None and run is not runs[0]
        change = (show_change(ns - base_ns, base_ns) if ns != base_ns else "unchanged") if is_other else ""
        description = f"{run.name}: {'the step without the profiler' if timed else 'the mean profiled step'}."
        figures.append(figure(f"step {letter}", units.show_time(ns), description, change))
    if len(comparisons) == 1 and (comparison := comparisons[0]) and comparison.comparable:
        verdicts = Counter(change.verdict for change in comparison.changes)
        shown = ("worse", "better", "unknown")
        figures.append(
            KeyFigure(
                label=f"accounts {', '.join(words.VERDICTS[verdict].label for verdict in shown)}",
                value=" · ".join(str(verdicts[verdict]) for verdict in shown),
                description=" ".join(words.VERDICTS[verdict].means for verdict in shown),
            )
        )
    differing = sum(row.status == "differs" for row in facts)
    figures.append(
        KeyFigure(
            label="settings differ",
            value=f"{differing}",
            description="Settings that differ, of those that several runs record.",
        )
    )
    return figures


def _warnings(
    runs: Sequence[ComparedRun], comparisons: Sequence[Comparison | None], checks: Sequence[PlanCheck | None]
) -> list[str]:
    """What must be known before the figures are read: missing ledgers, other work, doubts, the state of a run."""
    warnings = [f"{run.name}: {run.no_ledger}" for run in runs if run.no_ledger]
    warnings += [f"{run.name}: {warning}" for run in runs if run.analysis for warning in run.analysis.warnings]
    base, *others = runs
    for other, comparison, check in zip(others, comparisons, checks):
        if base.side and other.side and base.side.ledgers == other.side.ledgers:
            warnings.append(f"{base.name} and {other.name} have equal ledgers: they are the same recording.")
        prefix = f"{other.name}: " if len(others) > 1 else ""
        if comparison:
            warnings.extend(f"{prefix}{reason}" for reason in (*comparison.reasons, *comparison.doubts))
        if check and check.same_layout is False:
            warnings.append(f"{prefix}No plan of the file has the layout of the run; it is compared with the first.")
    return list(dict.fromkeys(warnings))


def _notes(
    runs: Sequence[ComparedRun], comparisons: Sequence[Comparison | None], checks: Sequence[PlanCheck | None]
) -> list[str]:
    """Caveats of the comparison except for the differences of settings, which have their own table."""
    base, *others = runs
    notes: list[str] = []
    for other, comparison, check in zip(others, comparisons, checks):
        listed = list_differences(base.run, other.run) if base.run and other.run else []
        if comparison:
            notes.extend(caveat for caveat in comparison.caveats if caveat not in listed)
            notes.extend([comparison.no_operations] if comparison.no_operations else [])
        if check:
            notes.extend(check.sentences[1:])
            if check.choices > 1:
                notes.append(f"The file holds {check.choices} plans; compared is number {check.choice}.")
            if check.memory == "resident":
                measured = units.show_size(check.measured_bytes)
                notes.append(
                    f"The measured {measured} are the process's resident memory, which a plan does not predict."
                )
    with_traces = [run for run in runs if run.measured]
    for run in runs:
        if run.run and run.side and not run.measured and with_traces:
            notes.append(f"The traces of {run.name} were not kept: its findings are those of its ledgers alone.")
    return list(dict.fromkeys(notes))
