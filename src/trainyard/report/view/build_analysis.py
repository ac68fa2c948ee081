"""Builds the analysis of profiler files or of a stored run: ledgers, findings, key figures and tables."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from trainyard import plugins, units, words
from trainyard.detect.coverage import MIN_UNEXPLAINED_FRACTION as UNEXPLAINED_LEAST
from trainyard.detect.finding_text import MIN_STEP_FRACTION, describe_step, matters
from trainyard.diagnose.price_findings import diagnose
from trainyard.finding import Finding
from trainyard.job import SCRIPT, Job
from trainyard.ledger import WINDOW, Ledger
from trainyard.recipe import Recipe
from trainyard.record import Run
from trainyard.report.view.analysis import Analysis
from trainyard.report.view.build_charts import build_charts
from trainyard.report.view.expert_load import expert_table
from trainyard.report.view.fact_tables import run_tables, tables
from trainyard.report.view.key_figures import figures_of_run, ideal_ns, profiled_step_warning
from trainyard.report.view.memory_chart import highest_memory, holders_table
from trainyard.report.view.view import KernelRow, KeyFigure
from trainyard.run.parts.part import joined_run_id
from trainyard.store.measurement_warnings import measurement_warnings
from trainyard.store.run_summary import summarise
from trainyard.trace.flops.coverage import formula_coverage
from trainyard.trace.flops.roofline import RECORD_SHAPES, Roofline, op_roofline
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.step_overview import main_interruption
from trainyard.trace.top_kernels import Busy, top_work
from trainyard.trace.whatif.replay import Replay

_MOST_ROWS = 30
"""Kernels and modules in an analysis."""
_MOST_PATTERNS = 8
"""Formulas that a warning lists."""
_COMPUTE_BOUND = 0.85
"""Share of compute in a step above which it is called compute-bound."""
_RECORD_SHAPES_OF_RUN = "trainyard run --shapes"
"""How shapes are recorded in a run: on a CPU they are not, unless requested, since they slow the steps."""
_LIMITS = (
    "Overlapped communication slows concurrent compute through contention; that time is booked as compute.",
    "Profiling has overhead. The ledger is of profiled steps; a run's step time is of unprofiled ones.",
)


def analyse_measured(measured: MeasuredTrace, replay: Replay | None = None) -> Analysis:
    """Analyses profiler files that do not belong to a stored run. `measured`: the booked files, in which every interval
    has an account; `replay`: of `measured`, if it is used elsewhere too."""
    events = measured.ranks[0].events
    device = events.device or ("CPU" if events.device_index < 0 else "unnamed device")
    if measured.by_model:
        device = ", ".join(f"{len(model.ranks)} × {model.model}" for model in measured.by_model)
    subject = [part for part in (device, _ranks(len(measured.ranks), measured.world), events.backend) if part]
    return _analysis(
        measured.mean, measured.ledgers, run=None, measured=measured, subject=" · ".join(subject), replay=replay
    )


def analyse_run(run: Run, measured: MeasuredTrace | None = None, replay: Replay | None = None) -> Analysis:
    """Analyses a stored run. `measured`: its traces, booked again, which add tables and kernels; `replay`: of
    `measured`, if it is used elsewhere too. The mean ledger of a run that ended before its profile was booked is
    empty."""
    job = run.job
    device = run.provenance.devices[0].name if run.provenance.devices else "CPU"
    subject = f"{job.name} · {job.layout.ranks} × {device} · {job.layout} · {_recipe(job)}"
    if job.workload == SCRIPT:
        subject = f"{job.sizes['command']} · {job.layout.ranks} × {device}"
    ledgers = measured.ledgers if measured else run.ledgers
    mean = ledgers[-1] if ledgers else Ledger(wall_ns=0, entries=(), source=run.id)
    return _analysis(mean, ledgers, run=run, measured=measured, subject=subject, replay=replay)


def _analysis(
    mean: Ledger,
    ledgers: tuple[Ledger, ...],
    *,
    run: Run | None,
    measured: MeasuredTrace | None,
    subject: str,
    replay: Replay | None,
) -> Analysis:
    """The analysis of the `mean` step and the `ledgers` behind it. `run`: the stored run, if any; `measured`: the
    booked traces, if available; both add figures and tables. `subject`: device, ranks and job in words."""
    # The ranks on one model of device, of which kernels and modules are listed.
    comparable = measured.comparable if measured else None
    findings = tuple(diagnose(mean, run, measured, replay))
    way_to_record = _RECORD_SHAPES_OF_RUN if run else RECORD_SHAPES
    roofline = op_roofline(comparable, way_to_record=way_to_record) if comparable else None
    memory = highest_memory(measured) if measured else None
    charts = build_charts(run, measured, roofline, memory)
    return Analysis(
        headline=_headline(mean, findings, run, main_interruption(measured.steps) if measured else ""),
        subject=subject,
        source=f"run {run.id}" if run else mean.source,
        state=run.state if run else "",
        ledgers=ledgers,
        findings=findings,
        figures=(*(figures_of_run(run) if run else ()), *(_figures(mean, run, measured) if mean.wall_ns else ())),
        ideal=ideal_ns(run) if run else None,
        kernels=_rows(top_work(comparable, "kernels", most=_MOST_ROWS), mean.wall_ns) if comparable else (),
        modules=_rows(top_work(comparable, "modules", most=_MOST_ROWS), mean.wall_ns) if comparable else (),
        steps=measured.steps if measured else None,
        formulas=formula_coverage(roofline) if roofline else None,
        tables=(
            *(run_tables(run) if run else ()),
            *((expert_table(charts.experts),) if charts.experts else ()),
            *((holders_table(memory.memory),) if memory and memory.memory.holders else ()),
            *(tables(measured, roofline, way_to_record) if measured and roofline else ()),
        ),
        charts=charts,
        warnings=(
            *((measured.left_out,) if measured and measured.unread else ()),
            *((measured.unlike_devices,) if measured and measured.by_model else ()),
            *(_unmatched_formulas(roofline) if roofline else ()),
            *_warnings(mean, run),
        ),
        notes=(*(measured.notes if measured else ()), *((*_no_mfu(run), *_device_clocks(run)) if run else ())),
        limits=(*_LIMITS, measured.alignment.why if measured else words.ALIGNMENTS[mean.scope.aligned].means),
    )


def _unmatched_formulas(roofline: Roofline) -> tuple[str, ...]:
    """A sentence on the user's formulas that match no op; none if each matches one."""
    if not roofline.unmatched:
        return ()
    named = "; ".join(", ".join(patterns) for patterns in roofline.unmatched[:_MOST_PATTERNS])
    more = f"; and {len(roofline.unmatched) - _MOST_PATTERNS} more" * (len(roofline.unmatched) > _MOST_PATTERNS)
    formulas = units.counted(len(roofline.unmatched), "formula matches", "formulas match")
    return (f"{formulas} no op of these files: {named}{more}. Names are compared as they are in the trace.",)


def _recipe(job: Job) -> str:
    """The number format, the batch, and the other settings that differ from their defaults."""
    recipe, unit = job.recipe, plugins.unit_of(job)
    parts = [recipe.dtype, *([f"seq {recipe.seq_len}"] if unit == "tokens" else [])]
    parts.append(f"{recipe.tokens_per_step:,} {unit} a step")
    if job.accumulate > 1:
        least = "" if job.layout.has_equal_shares else f"{min(job.micro_batches)} to "
        parts.append(f"{least}{job.accumulate} micro-batches of {recipe.micro_batch_size}")
    for name, default in _SHOWN.items():
        value = getattr(recipe, name)
        if value != default:
            parts.append(name if value is True else f"{name} {value}")
    return " · ".join(parts)


_SHOWN = {
    field.name: field.default
    for field in msgspec.structs.fields(Recipe)
    if field.name
    in ("optimizer", "activation_checkpoint", "activation_checkpoint_every", "schedule", "offload", "compile")
}
"""Keys of a recipe that change how a step is computed, and their defaults."""


def _ranks(here: int, world: int) -> str:
    """`8 of 64 ranks`: ranks in the files, of the job's. `world`: 0 if unknown."""
    return f"{here} of {units.counted(world, 'rank')}" if world else units.counted(here, "rank")


def _headline(mean: Ledger, findings: Sequence[Finding], run: Run | None, interruption: str) -> str:
    """The run's failure if it has one, else the severest avoidable cost, else the resource that bounds the step.

    `interruption`: work between the steps that takes much of the window, as a sentence, which then comes first; empty
    if there is none.
    """
    if run and run.state == "damaged":
        return f"Run {run.id} is damaged: {run.failure}"
    if run and run.state != "complete":
        return run.failure.splitlines()[0] if run.failure else f"Run {run.id} is {run.state}"
    if run and not run.ledgers and run.missing_ranks and run.id != (joined := joined_run_id(run.job_id)):
        ranks = [rank for share in run.nodes if not share.missing for rank in share.ranks]
        shown = units.show_ranks(ranks).capitalize()
        return f"{shown} of run {joined}, whose ledger is made over the parts of all nodes"
    if run and not run.ledgers:
        return f"Run {run.id} {_unprofiled(run)}: only its step samples are available"
    bound = _bound(mean, findings)
    return f"{interruption}. Within the steps: {bound}" if interruption else bound


def _bound(mean: Ledger, findings: Sequence[Finding]) -> str:
    """The first avoidable cost of the mean step, else the account that takes most of it. `findings`: by weight, the
    largest first; those of the rule `coverage` are about time without a known cause, which is not a cost."""
    avoidable = [finding for finding in findings if finding.rule != "coverage" and matters(mean, finding.cost_ns)]
    if avoidable and avoidable[0].severity == "high":
        return avoidable[0].summary
    no_finding = f"No rule finds an avoidable cost of {100 * MIN_STEP_FRACTION:g} % or more"
    if not mean.wall_ns or not (avoidable or mean.by_account()):
        return f"{no_finding} in {describe_step(mean)}"
    account, ns = max(mean.by_account().items(), key=lambda item: item[1])
    largest = f"{account.label} takes {units.show_time(ns)} of {describe_step(mean)}"
    if mean.by_kind().get("compute", 0) >= _COMPUTE_BOUND * mean.wall_ns:
        return f"Compute-bound: {largest}"
    return avoidable[0].summary if avoidable else f"{no_finding}: {largest}"


def _unprofiled(run: Run) -> str:
    """Why a run has no profile. A script may end before the window begins; the step that was running when it was first
    observed is not timed."""
    measure = run.job.measure
    if not measure.profiled:
        return "was not profiled"
    timed = len({sample.step for sample in run.samples})
    return f"was too short for a profile, which takes {measure.in_all} timed steps; it had {timed}"


def _figures(mean: Ledger, run: Run | None, measured: MeasuredTrace | None) -> list[KeyFigure]:
    """Key figures of the mean step: step time if there is no run, shares of compute, overlap and coverage."""
    kinds = mean.by_kind()
    comm_ns = mean.unions.get("comm", 0)
    figures: list[KeyFigure] = []
    if run is None:
        value, unit = units.show_time(mean.wall_ns).rsplit(" ", 1)
        label = "window" if mean.scope.steps == (WINDOW,) else "step time"
        if measured and measured.steps.how == "inferred":
            label = f"inferred step time ({100 * (measured.steps.confidence or 0):.0f} % sure)"
        figures.append(KeyFigure(label=label, value=value, unit=unit, description="Mean over ranks and full steps."))
    share = units.show_share(kinds.get("compute", 0), mean.wall_ns).removesuffix(" %")
    figures.append(
        KeyFigure(label="compute", value=share, unit="%", description="Share of the step in which compute runs.")
    )
    if comm_ns:
        hidden = units.show_share(comm_ns - kinds.get("comm", 0), comm_ns).removesuffix(" %")
        figures.append(
            KeyFigure(
                label="communication overlapped",
                value=hidden,
                unit="%",
                description="Share of communication time hidden behind compute.",
            )
        )
    covered = units.show_share(mean.wall_ns - mean.unrecognised_ns, mean.wall_ns).removesuffix(" %")
    figures.append(
        KeyFigure(
            label="coverage",
            value=covered,
            unit="%",
            description="Share of the step's time that could be attributed to a known cause.",
        )
    )
    return figures


def _no_mfu(run: Run) -> list[str]:
    """Notes on a missing MFU, if no other share of a rate mentions it, and on a missing share of the matmul rate."""
    summary = summarise(run)
    notes = [f"No MFU: {summary.no_mfu}."] if summary.no_mfu and not (summary.mfu or summary.matmul_share) else []
    return [*notes, *([f"No share of the matmul rate: {why}."] if (why := summary.no_matmul_share) else [])]


def _device_clocks(run: Run) -> list[str]:
    """Notes on the clocks that timed the steps, unless the host's clock timed all of them."""
    if run.step_clocks in ((), ("host",)):
        return []
    return [f"Steps are timed by {words.STEP_CLOCKS[clock].label}." for clock in run.step_clocks]


def _rows(rows: list[Busy], wall_ns: int) -> tuple[KernelRow, ...]:
    """Rows of the table of kernels or modules, with their share of a step of `wall_ns` ns."""
    return tuple(
        KernelRow(
            name=row.name, account=row.account, phase=row.phase, ns=row.ns, count=row.count,
            share=row.ns / wall_ns if wall_ns else 0.0,
        )
        for row in rows
    )  # fmt: skip


def _warnings(mean: Ledger, run: Run | None) -> tuple[str, ...]:
    """Reasons to distrust the ledger: an incomplete run, unusual profiled steps, or much unexplained time."""
    warnings: list[str] = []
    if run and run.state != "complete":
        warnings.append(f"State of the run: {run.state}. {words.STATES[run.state].means}")
    if run and mean.wall_ns and (warning := profiled_step_warning(run, mean.wall_ns)):
        warnings.append(warning)
    if run:
        warnings.extend(measurement_warnings(run))
    if mean.unrecognised_ns > UNEXPLAINED_LEAST * mean.wall_ns:
        share = units.show_share(mean.unrecognised_ns, mean.wall_ns)
        warnings.append(
            f"{share} of the step is unexplained or unrecognised ({units.show_time(mean.unrecognised_ns)})."
        )
    return tuple(warnings)
