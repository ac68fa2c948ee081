"""Builds the view of plans: the ledger of the first and the charts of the others. Names come from files: renderers
must escape them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trainyard import __version__, units, words
from trainyard.machine import Claim
from trainyard.predict.memory.framework_memory import RESERVED, USABLE
from trainyard.predict.search import points
from trainyard.predict.search.device_scaling import ScalingPoint
from trainyard.predict.search.points import LayoutPoint
from trainyard.report.plans import hetero_tables, pipeline_tables
from trainyard.report.plans import plan_tables as tables
from trainyard.report.plans.plans_file import PlanRecord, Plans
from trainyard.report.view.charts import Charts
from trainyard.report.view.key_figures import figure
from trainyard.report.view.planned_pipeline import planned_pipeline
from trainyard.report.view.view import Bar, Column, Dot, KeyFigure, Legend, Planned, Stack, Table, View
from trainyard.report.view.waterfall import waterfall

_LIMITS = (
    "Nothing here was measured on this machine: compare it with a run using trainyard diff.",
    "The interval is of the step time; days, dollars and energy follow from the predicted step.",
    "The ledger is the mean over pipeline stages, memory the fullest rank's.",
)


def view_of_plans(plans: Plans) -> View:
    """The page of the plans: the best layout's ledger as bars, tables of all layouts, charts of memory and scaling."""
    best = plans.best
    ledger, job = best.plan.ledger, best.plan.job
    layout = tables.short(job.layout, job.recipe.schedule, job.recipe.offload)
    recipe = (
        f"{layout} · micro-batch {job.recipe.micro_batch_size} · "
        f"activation checkpointing {job.recipe.activation_checkpoint}"
    )
    batch = f"{tables.describe_samples(job.batch, job.recipe.seq_len)} a step · {job.recipe.dtype}"
    layouts = hetero_tables.layouts(plans)
    return View(
        title=_title(plans),
        subtitle=f"{'' if plans.as_configured else 'recommended: '}{recipe} · {batch}",
        chips=(
            f"machine {plans.machine}",
            f"constants {plans.constants.name}",
            *((f"fine-tuning {plans.fine_tuning.label}",) if plans.fine_tuning else ()),
        ),
        figures=tuple(_figures(plans)),
        wall_ns=ledger.wall_ns,
        bars=_bars(plans),
        bars_note=(
            f"{recipe}: every nanosecond accounted for, the rows add up to {units.show_ns(ledger.wall_ns)} ns; "
            f"whisker: {_interval_words(plans)}"
        ),
        tables=(
            replace(layouts, title="Layouts", notes=layouts.notes[:1]),
            *tables.variants(plans),
            *hetero_tables.part_tables(plans),
            *pipeline_tables.pipeline(plans),
            *tables.scaling(plans),
            _assumed(plans),
        ),
        table=tuple(
            (str(e.account), e.account.label, e.phase, e.ns, e.hidden_ns, e.count) for e in ledger.sorted_entries()
        ),
        planned=_planned(plans),
        charts=Charts(pipeline=planned_pipeline(job)),
        warnings=(_too_full(plans),) if not tables.fits(best, plans) else (),
        notes=layouts.notes[1:],
        limits=_LIMITS,
        generated=f"trainyard {__version__}",
    )


def _title(plans: Plans) -> str:
    """Job, devices and step time, with the days and dollars that the token budget takes if there is one."""
    bill = plans.best.bill
    step = units.show_time(plans.best.plan.ledger.wall_ns)
    on = plans.machine if plans.heterogeneous else f"{plans.devices:,} × {plans.device or plans.machine}"
    title = f"{plans.best.plan.job.name or 'A step'} on {on}: {step} a step"
    if not plans.tokens:
        return title
    paid = f" for {units.show_dollars(bill.dollars)}" if bill.dollars is not None else ""
    tokens = units.show_count(plans.tokens).replace(".0", "")
    per_day, unit = units.duration_unit(bill.days)
    return f"{title}, {tokens} tokens in {per_day * bill.days:,.1f} {unit}{paid}"


def _too_full(plans: Plans) -> str:
    """The warning that the best layout needs more memory than the device has."""
    needs, has = (units.show_size(size) for size in (plans.best.reserved_bytes, plans.memory_bytes))
    return f"It does not fit: {needs} of {has}, of which {100 * USABLE:.0f} % are usable."


def _figures(plans: Plans) -> list[KeyFigure]:
    """Key figures of the best plan: step, throughput, MFU and memory; days, dollars and energy as far as known."""
    best, bill = plans.best, plans.best.bill
    low, high = units.show_time(best.plan.low), units.show_time(best.plan.high)
    unit = tables.unit_of(best.plan.job)
    figures = [
        figure("step", units.show_time(best.plan.ledger.wall_ns),
               f"Predicted, with an interval: {_interval_words(plans)}.", f"{low} to {high}"),
        figure("throughput", units.show_rate(bill.tokens_per_s, f" {unit}/s"), f"{unit.capitalize()} of all devices."),
        KeyFigure(label="MFU", value=f"{100 * bill.mfu:.1f}", unit="%",
               description=f"Model FLOPs a second, over the {bill.peak_dtype} peak.".replace("  ", " ")),
        KeyFigure(label="memory", value=f"{best.reserved_bytes / 1e9:.1f}", unit="GB",
               description="The fullest rank's.",
               change=f"of {plans.memory_bytes / 1e9:.1f}" if plans.memory_bytes else ""),
    ]  # fmt: skip
    if plans.tokens:
        per_day, time_unit = units.duration_unit(bill.days)
        figures.append(
            KeyFigure(
                label="to train",
                value=f"{per_day * bill.days:,.1f}",
                unit=time_unit,
                description="Including time lost to failures.",
            )
        )
    if bill.dollars is not None:
        value, _, unit = units.show_count(bill.dollars).partition(" ")
        figures.append(KeyFigure(label="to pay", value=f"${value}", unit=unit, description="Devices by the hour."))
    if bill.kwh is not None:
        figures.append(figure("energy", units.show_rate(bill.kwh * 1e3, "Wh"), "With hosts, networks and cooling."))
    return figures


def _interval_words(plans: Plans) -> str:
    """The meaning of the best layout's interval."""
    plan = plans.best.plan
    if plan.calibrated:
        return "four of five measured steps lie in it"
    because = plan.uncalibrated_because
    return f"assumed, not calibrated{because and f', because {because}'}"


def _bars(plans: Plans) -> tuple[Bar, ...]:
    """The waterfall of the best layout's predicted ledger; the total has the prediction interval as whiskers."""
    plan = plans.best.plan
    *steps, total = waterfall(plan.ledger, {}, [], None)
    return (*steps, replace(total, whiskers=(plan.low, plan.high)))


def _planned(plans: Plans) -> Planned:
    """The data of the charts: memory of each layout by part (weights, logits, ...) in bytes, the Pareto front, and the
    step time over numbers of devices with a fixed batch (`strong`) or a batch that grows with them (`weak`).

    `limit`: bytes of a device, of which the fraction `USABLE` is available; `RESERVED`: the ratio of the bytes that the
    allocator reserves to those allocated. Parts that no layout needs are left out.
    """
    legends = {part: Legend(label=word.label, colour=word.colour) for part, word in words.MEMORY.items()} | {
        "logits": Legend(label=tables.OTHER_PARTS["logits"], colour=words.MEMORY["temporary"].colour),
        "gathered": Legend(label=tables.OTHER_PARTS["gathered"], colour=words.MEMORY["communication"].colour),
    }
    used = [part for part in legends if any(record.plan.memory.get(part) for record in plans.choices)]
    scaling = plans.scaling
    return Planned(
        parts=tuple(legends[part] for part in used),
        stacks=tuple(
            Stack(
                label=_label(_point(record, plans)),
                sizes=tuple(record.plan.memory.get(part, 0) for part in used),
                reserved=record.reserved_bytes,
            )
            for record in plans.choices
        ),
        limit=plans.memory_bytes,
        usable=USABLE,
        reserved=RESERVED,
        devices=plans.devices,
        front=tuple(
            _dot(record)
            for record in plans.pareto_front
            or [_point(record, plans) for record in plans.choices if record.on_pareto_front]
        ),
        others=tuple(_dot(_point(record, plans)) for record in plans.choices if not record.on_pareto_front),
        strong=_dots(scaling.strong) if scaling else (),
        weak=_dots(scaling.weak) if scaling else (),
        summary=scaling.summary if scaling else "",
    )


def _point(record: PlanRecord, plans: Plans) -> LayoutPoint:
    """A layout with the figures that charts need, without its ledger."""
    plan = record.plan
    point = points.of_job(plan.job, plan.ledger.wall_ns, plan.low, plan.high, record.reserved_bytes, record.bill)
    return points.count_devices(point, plans.ranks_per_device)


def _label(point: LayoutPoint) -> str:
    """`layout · micro-batch · activation checkpointing`, the label of a point in a chart."""
    layout = tables.short(point.layout, point.schedule, point.offload)
    return f"{layout} · {point.micro_batch_size} · {point.activation_checkpoint}"


def _dots(scaling_points: Sequence[ScalingPoint]) -> tuple[Dot, ...]:
    """Points of a scaling chart; a number of devices that no layout fits becomes a point with the reason."""
    return tuple(
        replace(_dot(scaled.point), efficiency=scaled.efficiency) if scaled.point
        else Dot(label="", devices=scaled.devices, samples=scaled.samples, reason=scaled.reason)
        for scaled in scaling_points
    )  # fmt: skip


def _dot(point: LayoutPoint) -> Dot:
    """A layout as a point of a chart: step times in ns, reserved memory in bytes, cost of the token budget."""
    bill = point.bill
    return Dot(
        label=_label(point), devices=point.devices,
        samples=point.samples, wall_ns=point.wall_ns, low=point.low, high=point.high, reserved=point.reserved,
        tokens_per_s=bill.tokens_per_s, mfu=bill.mfu, days=bill.days, dollars=bill.dollars, kwh=bill.kwh,
    )  # fmt: skip


def _assumed(plans: Plans) -> Table:
    """The table of the constants behind the plan, with their sources: those of the costs, then the fitted ones."""
    named = [(name, claim.unit, claim) for name, claim in plans.claims.items()]
    fitted = [_named(claim) for claim in plans.best.plan.assumptions]
    return Table(
        title="Assumptions",
        notes=("Constants of prices, failures and energy; then those that no data sheet lists.",),
        columns=(
            Column(title="constant"), Column(title="value"), Column(title="unit"), Column(title="measured"),
            Column(title="date"), Column(title="source", prose=True),
        ),
        rows=tuple(
            (name, f"{claim.value:,.6g}", unit, "yes" if claim.measured else "no", claim.date, claim.source)
            for name, unit, claim in (*named, *fitted)
        ),
    )  # fmt: skip


def _named(claim: Claim) -> tuple[str, str, Claim]:
    """(name, unit, constant) of a fitted constant, whose unit begins with its name."""
    name, _, unit = claim.unit.partition(" ")
    return name, unit, claim
