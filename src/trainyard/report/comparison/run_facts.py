"""The provenance of compared runs side by side: which settings differ, which are equal, which only some runs record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from trainyard import units, words
from trainyard.compare.differences import ABSENT, collect_facts
from trainyard.job import SCRIPT, Job
from trainyard.record import Run
from trainyard.report.comparison.compared_run import ComparedRun
from trainyard.report.plans.plans_file import Plans
from trainyard.trace.measured_trace import MeasuredTrace

FACT_KINDS = {
    "code": "the revision, and whether the tree was dirty",
    "command": "the command line of a script, or the job's name and workload",
    "model": "the dimensions of the model",
    "layout": "the parallelism layout",
    "recipe": "the training settings",
    "measure": "the steps that were timed and profiled",
    "devices": "the devices",
    "host": "the machine",
    "driver": "the device driver",
    "torch": "the torch build",
    "packages": "versions of the installed packages",
    "environment": "environment variables that affect training",
    "seeds": "the seeds",
    "recording": "what the profiler recorded",
}
"""Kind of setting -> its description, in the order in which they are shown."""

Facts = Mapping[str, Mapping[str, Any]]
"""Kind, a key of `FACT_KINDS` -> setting -> its value. A kind that was not recorded is missing or empty."""
_COMPLETE_KINDS = ("code", "model", "driver", "torch", "packages", "environment")
"""Kinds of which a recording has all settings: one that it lacks is absent. In other kinds it is unknown."""


class FactRow(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of all runs. `values`: its value in each run as text, None if the run does not record it. `status`:
    whether the runs that record it differ or are equal; `partial` if fewer than two record it."""

    kind: str
    key: str
    values: tuple[str | None, ...]
    status: Literal["differs", "equal", "partial"]


def compare_facts(runs: Sequence[ComparedRun]) -> tuple[FactRow, ...]:
    """The settings of the runs in the order of `FACT_KINDS`, one row each."""
    facts_of_runs = [collect_run_facts(run) for run in runs]
    rows: list[FactRow] = []
    for kind in FACT_KINDS:
        tables = [facts.get(kind) for facts in facts_of_runs]
        for key in dict.fromkeys(key for table in tables for key in table or ()):
            values = _differing_lines([_value_of(table, key, kind) for table in tables])
            known = [value for value in values if value is not None]
            status = "partial" if len(known) < 2 else "equal" if len(set(known)) == 1 else "differs"
            rows.append(FactRow(kind=kind, key=key, values=values, status=status))
    return tuple(rows)


def collect_run_facts(compared: ComparedRun) -> Facts:
    """The settings of a run, traces or plans, as far as they are recorded."""
    facts: dict[str, Mapping[str, Any]] = {}
    if compared.plans:
        plan = compared.side.plan if compared.side else None
        facts |= _job_facts((plan or compared.plans.best.plan).job) | _plan_facts(compared.plans)
    if compared.run:
        facts |= _recorded_facts(compared.run)
    if compared.measured:
        facts |= _trace_facts(compared.measured, is_of_run=compared.run is not None)
    return facts


def _job_facts(job: Job) -> dict[str, Mapping[str, Any]]:
    """The settings of a job. Of a script, only its command line and its number of ranks are known."""
    if job.workload == SCRIPT:
        return {"command": {"command": job.sizes.get("command", "")}, "layout": {"ranks": job.layout.ranks}}
    return {
        "command": {"job": job.name, "workload": job.workload},
        "model": {**(msgspec.to_builtins(job.model) or {}), **job.sizes},
        "layout": {"ranks": job.layout.ranks, **msgspec.to_builtins(job.layout)},
        "recipe": msgspec.to_builtins(job.recipe),
    }


def _recorded_facts(run: Run) -> dict[str, Mapping[str, Any]]:
    """The settings and the provenance of a stored run. Clocks and power, which differ between any two runs, are left
    out."""
    is_script = run.job.workload == SCRIPT
    provenance = {kind: facts for kind, facts in collect_facts(run).items() if not (is_script and kind == "recipe")}
    names = Counter(device.name for device in run.provenance.devices)
    clocks = [words.STEP_CLOCKS[clock].label for clock in run.step_clocks]
    return {
        **provenance,
        **_job_facts(run.job),
        "measure": {**provenance["measure"], **({"clock of the steps": ", ".join(clocks)} if clocks else {})},
        "devices": _device_facts(names),
        "seeds": run.provenance.seeds,
    }


def _plan_facts(plans: Plans) -> dict[str, Mapping[str, Any]]:
    """The devices of plans."""
    return {"devices": _device_facts(Counter({plans.device or plans.machine: plans.devices}))}


def _trace_facts(measured: MeasuredTrace, *, is_of_run: bool) -> dict[str, Mapping[str, Any]]:
    """What traces record. `is_of_run`: whether a stored run, which knows its devices, recorded them."""
    mean, events = measured.mean, measured.ranks[0].events
    recording = {
        "ranks in the files": units.show_ranges(measured.rank_numbers),
        "full steps": len(mean.scope.steps),
        "clocks of the ranks": words.ALIGNMENTS[measured.alignment.aligned].label,
        "backend": events.backend or ABSENT,
        "Python stacks": "yes" if events.stacks or events.python else "no",
        "shapes": "yes" if events.shapes else "no",
    }
    if is_of_run:
        return {"recording": recording}
    names = Counter({model.model: len(model.ranks) for model in measured.by_model})
    device = events.device or ("CPU" if events.device_index < 0 else "unnamed device")
    facts: dict[str, Mapping[str, Any]] = {
        "devices": _device_facts(names or Counter({device: len(measured.ranks)})),
        "layout": {"ranks": events.world or len(measured.ranks)},
        "recording": recording,
    }
    return facts | ({"host": {"name": events.host_name}} if events.host_name else {})


def _device_facts(names: Counter[str]) -> dict[str, str]:
    """The model of the devices as one value, with numbers if they are unlike: `6 × A, 2 × B`; empty if unknown."""
    if not names:
        return {}
    counted = [f"{count} × {name}" for name, count in names.items()]
    return {"model": ", ".join(counted if len(names) > 1 else names)}


def _value_of(table: Mapping[str, Any] | None, key: str, kind: str) -> str | None:
    """The value of a setting in a run's settings of a kind as text; None if it is unknown."""
    if not table or (key not in table and kind not in _COMPLETE_KINDS):
        return None
    return _show(table.get(key, ABSENT))


def _differing_lines(values: Sequence[str | None]) -> tuple[str | None, ...]:
    """The values, of which those with several lines are reduced to the lines that not all of them have; the first line
    if they are equal."""
    lines = [value.splitlines() if value else [] for value in values]
    if all(len(value_lines) < 2 for value_lines in lines):
        return tuple(values)
    known = [set(value_lines) for value, value_lines in zip(values, lines) if value is not None]
    common = set.intersection(*known)
    return tuple(
        value and ("; ".join(line.strip() for line in value_lines if line not in common) or f"{value_lines[0]} ...")
        for value, value_lines in zip(values, lines)
    )


def _show(value: Any) -> str:
    """The value of a setting as text: lists without brackets, yes and no for flags."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "default" if value is None else str(value)
