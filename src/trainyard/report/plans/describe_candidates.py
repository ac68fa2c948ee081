"""Describe the candidates of a plan as jobs to measure, with their predictions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from trainyard.job import Job, Measure
from trainyard.report.plans import plan_tables
from trainyard.report.plans.input_sentences import input_sentences
from trainyard.report.plans.measured_plans import MeasuredCandidate, MeasuredPlans, Mode
from trainyard.report.plans.plans_file import PlanRecord, Plans

_WARMUP, _PROFILED = 3, 2
"""Steps of each run that are discarded, and those with the profiler, whose ledger is fitted."""
_MAX_NAME = 40
"""Characters of a model's name in the tags of its runs."""


def describe_candidates(
    plans: Plans, records: Sequence[PlanRecord], mode: Mode, rounds: int, steps: int
) -> MeasuredPlans:
    """The candidates `records` of `plans` before any run of them. `mode`: as in `MeasuredPlans`. `rounds`: runs of
    each; `steps`: timed steps of a run."""
    prefix = f"measure-{re.sub(r'[^A-Za-z0-9._-]', '-', plans.best.plan.job.name)[:_MAX_NAME]}"
    measure = Measure(warmup=_WARMUP, steps=steps, repeats=1, profiled=_PROFILED)
    candidates = tuple(
        _describe_candidate(
            record, f"{prefix}-{number}", replace(record.plan.job, name=prefix, measure=measure),
            recommended=number == 1,
        )
        for number, record in enumerate(records, 1)
    )  # fmt: skip
    predicted_ns = sum(candidate.predicted_ns for candidate in candidates)
    return MeasuredPlans(
        mode=mode, step=plans.step, machine=plans.machine, framework=plans.framework, devices=plans.devices,
        rounds=rounds, steps=measure.in_all, timed_steps=steps,
        predicted_s=predicted_ns / 1e9 * measure.in_all * rounds, candidates=candidates,
        notes=input_sentences(plans),
    )  # fmt: skip


def _describe_candidate(record: PlanRecord, name: str, job: Job, *, recommended: bool) -> MeasuredCandidate:
    """A candidate with its prediction. `job`: as it is measured."""
    plan = record.plan
    return MeasuredCandidate(
        name=name, layout=name_layout(job), job=job, recommended=recommended, baseline=record.baseline,
        tied=record.is_tied, predicted_ns=plan.ledger.wall_ns, low_ns=plan.low, high_ns=plan.high,
        calibrated=plan.calibrated, predicted_bytes=sum(plan.memory.values()),
    )  # fmt: skip


def name_layout(job: Job) -> str:
    """The layout with its micro-batch and activation checkpointing, in which candidates may differ."""
    recipe = job.recipe
    checkpointing = plan_tables.activation_checkpoint(recipe)
    recompute = "" if checkpointing == "none" else f", recompute {checkpointing}"
    return f"{plan_tables.short(job.layout, recipe.schedule, recipe.offload)}, mbs {recipe.micro_batch_size}{recompute}"
