"""A series from stored runs. Runs whose work or machine differs from the newest run are left out, with a note on the
differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from trainyard import units, words
from trainyard.compare.history.sources.series import Series, SeriesPoint, describe_metric
from trainyard.compare.metric import compute_metrics
from trainyard.errors import NotEnoughEvidence
from trainyard.record import Run


def build_series(job: str, runs: Sequence[Run], metric: str) -> tuple[Series, tuple[Run, ...]]:
    """(series, runs of its points), in order of the runs' start. `job`: name of the job; `runs`: its complete runs, in
    any order. Runs that differ from the newest one in work or machine are left out, with a note. Raises `UnknownName`
    for an unknown metric, `NotEnoughEvidence` if no run measured it."""
    about = words.metric(metric)
    ordered = sorted(runs, key=lambda run: (run.started, run.id))
    if not ordered:
        raise NotEnoughEvidence(
            f"no complete run of the job {job!r} is stored.", "`trainyard runs` lists the stored runs."
        )
    comparable, notes = _select_comparable(ordered)
    metrics_by_run = [compute_metrics(run) for run in comparable]
    measured = [(run, metrics[metric]) for run, metrics in zip(comparable, metrics_by_run) if metric in metrics]
    if not measured:
        other_metrics = sorted({name for metrics in metrics_by_run for name in metrics})
        raise NotEnoughEvidence(
            f"none of {units.counted(len(comparable), 'run')} of {job!r} measured {metric}.",
            f"They have: {', '.join(other_metrics)}.",
        )
    if len(measured) < len(comparable):
        unmeasured = units.counted(len(comparable) - len(measured), "run")
        notes.append(f"{unmeasured} without a measured {metric} left out.")
    points = tuple(
        SeriesPoint(value=value, run=run.id, commit=run.provenance.code.get("sha", ""), time=run.started)
        for run, value in measured
    )
    return Series(name=job, metric=metric, about=describe_metric(about), points=points, notes=tuple(notes)), tuple(
        run for run, _ in measured
    )


def _select_comparable(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """(runs with the same work and kind of machine as the newest one, notes on the differences of the others). `runs`:
    in order of their start."""
    newest = _describe_kind(runs[-1])
    comparable: list[Run] = []
    count_by_difference: Counter[str] = Counter()
    for run in runs:
        run_kind = _describe_kind(run)
        if run_kind == newest:
            comparable.append(run)
            continue
        different_keys = [key for key in run_kind if run_kind[key] != newest[key]]
        count_by_difference["; ".join(f"{key} {run_kind[key]} against {newest[key]}" for key in different_keys)] += 1
    return comparable, [
        f"{units.counted(count, 'run')} left out, different from the newest: {difference}."
        for difference, count in count_by_difference.items()
    ]


def _describe_kind(run: Run) -> Mapping[str, str]:
    """The properties of work and machine that all runs of a series must share: name -> value, as text."""
    job, provenance = run.job, run.provenance
    sizes = {**job.sizes, **(msgspec.to_builtins(job.model) or {})}
    return {
        "workload": job.workload,
        "sizes": ", ".join(f"{key} {value}" for key, value in sorted(sizes.items()) if key != "name"),
        "tokens a step": f"{job.recipe.tokens_per_step:,}",
        "sequence length": f"{job.recipe.seq_len:,}",
        "dtype": job.recipe.dtype,
        "layout": str(job.layout),
        "devices": ", ".join(
            sorted(f"{n} x {name}" for name, n in Counter(d.name for d in provenance.devices).items())
        ),
        "processor": provenance.host.get("cpu", ""),
    }
