"""Stored runs -> a series. Only like runs make one: what the newest run is, all must be; the others are left out, and
it is said why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from trainyard import words
from trainyard.compare.history.sources.series import Series, SeriesPoint
from trainyard.compare.metric import values
from trainyard.errors import NotEnoughEvidence
from trainyard.record import Run


def series(job: str, runs: Sequence[Run], metric: str) -> tuple[Series, tuple[Run, ...]]:
    """Of complete runs in any order; and the runs of its points, in order of their start. Raises `UnknownName` for no
    metric, `NotEnoughEvidence` where no run measured it."""
    about = words.metric(metric)
    ordered = sorted(runs, key=lambda run: (run.started, run.id))
    if not ordered:
        raise NotEnoughEvidence(f"no complete run of the job {job!r} is stored.", "`trainyard runs` lists what is.")
    alike, notes = _alike(ordered)
    figures = [values(run) for run in alike]
    kept = [(run, found[metric]) for run, found in zip(alike, figures) if metric in found]
    if not kept:
        had = sorted({name for found in figures for name in found})
        raise NotEnoughEvidence(
            f"none of {len(alike)} runs of {job!r} measured {metric}.", f"They have: {', '.join(had)}."
        )
    if len(kept) < len(alike):
        notes.append(f"{len(alike) - len(kept)} runs did not measure {metric} and are left out.")
    points = tuple(
        SeriesPoint(value=value, run=run.id, commit=run.provenance.code.get("sha", ""), when=run.started)
        for run, value in kept
    )
    return Series(name=job, metric=metric, about=about, points=points, notes=tuple(notes)), tuple(
        run for run, _ in kept
    )


def _alike(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Those that do the newest one's work on its kind of machine; and what the others differ in."""
    newest = _kind(runs[-1])
    alike: list[Run] = []
    others: Counter[str] = Counter()
    for run in runs:
        own = _kind(run)
        if own == newest:
            alike.append(run)
        else:
            others[
                "; ".join(f"{what} {own[what]} against {newest[what]}" for what in own if own[what] != newest[what])
            ] += 1
    return alike, [
        f"{count} runs are left out, which differ from the newest: {what}." for what, count in others.items()
    ]


def _kind(run: Run) -> Mapping[str, str]:
    """What must be the same for two runs' figures to be of one series: the work and the machine."""
    job, made = run.job, run.provenance
    sizes = {**job.sizes, **(msgspec.to_builtins(job.model) or {})}
    return {
        "workload": job.workload,
        "sizes": ", ".join(f"{key} {value}" for key, value in sorted(sizes.items()) if key != "name"),
        "tokens a step": f"{job.recipe.tokens_per_step:,}",
        "sequence length": f"{job.recipe.seq_len:,}",
        "dtype": job.recipe.dtype,
        "layout": str(job.layout),
        "devices": ", ".join(sorted(f"{n} x {name}" for name, n in Counter(d.name for d in made.devices).items())),
        "processor": made.host.get("cpu", ""),
    }
