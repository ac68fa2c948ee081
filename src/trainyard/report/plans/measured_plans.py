"""The result of `trainyard plan measure`: candidates of a plan, their measured steps, the fitted machine."""

from __future__ import annotations

from math import inf
from typing import Literal

import msgspec

from trainyard import units
from trainyard.compare.interleaved_steps import ALPHA, MeanStep, RatioToFastest
from trainyard.job import Job
from trainyard.report.plans.probe_results import FittedMachine

SCHEMA = "trainyard/measured-plans/1"
Mode = Literal["measured", "dry-run", "files"]
"""`measured`; `dry-run`, with nothing run or written; `files`, with launch configurations written for other hosts or
another framework."""


_MAX_BOUND = 2.0
"""Upper bound of a ratio of steps from which the headline leaves it out."""

_MAX_LISTED = 4
"""Layouts that the headline lists."""


class CandidateRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a candidate. `step`: without the profiler; `error`: measured over predicted step, minus 1.
    `memory_bytes`: the peak of the fullest rank, allocated on an accelerator, resident on a CPU. `runs`: ids of the
    stored runs, by round, of which an earlier command made `reused`."""

    step: MeanStep
    error: float
    memory_bytes: int
    runs: tuple[str, ...]
    reused: int = 0


class MeasuredCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A layout to measure. `name`: the tag of its typical run. `baseline`: it is plain FSDP or DDP; `tied`: the
    prediction cannot show whether it or the fastest is faster. `predicted_ns` with `low_ns` to `high_ns`: its predicted
    step and the 80 % prediction interval. `predicted_bytes`: memory of the fullest rank, without the reserve of the
    allocator. `versus_fastest`: the measured step over that of the fastest candidate. `after_fit_ns`: its step as
    predicted with the fitted machine. `failure`: why it could not be measured. `files`, `commands`: the written
    launch configuration, and the commands that start it and compare the result."""

    name: str
    layout: str
    job: Job
    recommended: bool
    baseline: bool
    tied: bool
    predicted_ns: int
    low_ns: int
    high_ns: int
    calibrated: bool
    predicted_bytes: int
    measured: CandidateRuns | None = None
    versus_fastest: RatioToFastest | None = None
    after_fit_ns: int | None = None
    failure: str = ""
    files: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


class MeasuredPlans(msgspec.Struct, frozen=True, kw_only=True):
    """Candidates of a plan, the recommended layout first, with measured steps.

    `mode`: `measured`; `dry-run`, with nothing run or written; `files`, with launch configurations written for other
    hosts or another framework. `step`: the model, the devices, and what a step trains on. `rounds`: runs of each
    candidate, interleaved; `steps`: of each run, `timed_steps` of which are timed. `predicted_s`: of all steps,
    without the starts of the runs. `confidence`: of the measured intervals. `fit`: None if nothing was measured.
    `recommended_after_fit`: the layout that a plan recommends for the fitted machine; empty without a fit. `feedback`,
    `feedback_commands`: sentences on how measurements of written configurations return to the planner, and the commands
    for that.
    """

    schema: Literal["trainyard/measured-plans/1"] = SCHEMA
    mode: Mode
    step: str
    machine: str
    framework: str
    devices: int
    rounds: int
    steps: int
    timed_steps: int
    predicted_s: float
    candidates: tuple[MeasuredCandidate, ...]
    confidence: float = 1 - ALPHA
    fit: FittedMachine | None = None
    recommended_after_fit: str = ""
    feedback: tuple[str, ...] = ()
    feedback_commands: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What limits the plan: settings that it leaves out, frameworks that do not run on the devices, and others."""

    @property
    def measured(self) -> tuple[MeasuredCandidate, ...]:
        """The candidates that were measured, the fastest first."""
        known = [candidate for candidate in self.candidates if candidate.versus_fastest is not None]
        return tuple(
            sorted(known, key=lambda candidate: candidate.versus_fastest.ratio if candidate.versus_fastest else 0)
        )

    @property
    def inseparable(self) -> tuple[MeasuredCandidate, ...]:
        """The fastest candidate, and those that the measurement cannot separate from it."""
        return tuple(
            candidate
            for candidate in self.measured
            if candidate.versus_fastest is not None and not candidate.versus_fastest.separated
        )

    @property
    def headline(self) -> str:
        """The fastest layout, or those that cannot be separated; for other modes, what would be run."""
        if self.mode == "files":
            return f"{units.counted(len(self.candidates), 'launch configuration')} written; nothing was run."
        if self.mode == "dry-run" and not self.rounds:
            return f"{units.counted(len(self.candidates), 'launch configuration')} would be written, and nothing run."
        if self.mode == "dry-run":
            runs = units.counted(len(self.candidates) * self.rounds, "run")
            predicted = units.show_time(self.predicted_s * 1e9)
            return (
                f"{units.counted(len(self.candidates), 'candidate')}; measuring them takes {runs} of "
                f"{units.counted(self.steps, 'step')}: {predicted} as predicted, without the starts of the runs."
            )
        if not self.measured:
            return "No candidate could be measured."
        inseparable = self.inseparable
        if len(inseparable) == 1:
            others = "Every other measured layout is slower." if len(self.measured) > 1 else "Only it was measured."
            return f"Fastest: {inseparable[0].layout}. {others}"
        layouts = units.listed([candidate.layout for candidate in inseparable], _MAX_LISTED, between="; ")
        bound = max(ratio.high or inf for candidate in inseparable if (ratio := candidate.versus_fastest))
        at_most = f", and the others are at most {100 * (bound - 1):.1f} % slower" if bound < _MAX_BOUND else ""
        return f"The measurement cannot separate {layouts}. The first has the shortest mean step{at_most}."

    def _repr_html_(self) -> str:
        """The tables for a notebook."""
        from trainyard.report.plans import measured_tables
        from trainyard.report.render.html_tables import tables_html

        return tables_html(self.headline, measured_tables.tables(self))
