"""Plans as tables: layouts side by side, the ledger and the memory of one, scaling over numbers of devices."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trainyard import plugins, units, words
from trainyard.job import Job
from trainyard.layout import Layout, describe_ends
from trainyard.plan import Plan
from trainyard.predict.economics.failures import Goodput
from trainyard.predict.inputs.prediction_interval import ASSUMED_HIGH, ASSUMED_LOW
from trainyard.predict.memory.framework_memory import USABLE
from trainyard.predict.search.device_scaling import ScalingPoint
from trainyard.predict.search.points import LayoutPoint
from trainyard.recipe import Recipe
from trainyard.report.plans import tied_layouts
from trainyard.report.plans.plans_file import PlanRecord, Plans
from trainyard.report.view.view import Cell, Column, Table

_OFFLOADED = (
    "Offloaded: the optimizer's state is kept in host memory and updated there; if no weights are left on the device, "
    "weights and gradients are too. The constants were not fitted to any such step."
)
_LEAST_SHARE = 0.0005
"""Smallest share that one decimal of a percentage shows."""
_FASTEST_OF_EACH = "The layout is the fastest for each number of devices, not the simplest that is tied with it."
_REASONS = 3
"""Reasons for infeasible layouts in the notes."""
ABBREVIATIONS = "mbs: micro-batch size; recompute: activation checkpointing."
INTERVAL = "80 % prediction interval"
OTHER_PARTS = {"logits": "Logits and the head's gradient", "gathered": "Gathered weights and gradients"}
"""Parts of memory that words.MEMORY lacks -> label."""


def fits(record: PlanRecord, plans: Plans) -> bool:
    """Whether a layout fits in the usable memory of a device, if that is known."""
    return not plans.memory_bytes or record.reserved_bytes <= USABLE * plans.memory_bytes


def layouts(plans: Plans) -> Table:
    """The table of layouts, the recommended one first, with the assumptions of the predictions as notes."""
    unit, unit_ns = time_unit(plans)
    columns = (
        Column(title="mbs", digits=0), Column(title="recompute"),
        Column(title=f"step, {unit}", digits=2, id=True), Column(title=f"{INTERVAL}, {unit}", id=True, optional=True),
        *tied_layouts.versus_columns(plans),
        Column(title=f"{unit_of(plans.best.plan.job)}/s", digits=0, optional=True),
        Column(title="MFU, %", digits=1, note=_mfu_note(plans)),
        Column(title="memory, GB", digits=1, id=True, note="Memory: the GB that the fullest rank reserves."),
        *_spent_columns(plans, with_notes=True),
    )  # fmt: skip
    return Table(
        title="Layout",
        notes=(
            *(("The first is the job as configured; the search found the others.",) * plans.as_configured),
            counts_note(plans) + constants_note(plans),
            *tied_layouts.notes(plans),
            ABBREVIATIONS,
            interval_note(plans)
            + " Tensor parallelism includes sequence and loss parallelism unless the layout says otherwise."
            * (plans.best.plan.job.model is not None),
            *_unpriced(plans),
            *_powered(plans),
            *ends_note(plans.choices),
            *experts_note(plans.choices),
            *((_OFFLOADED,) if any(record.plan.job.recipe.offload for record in plans.choices) else ()),
            *(f"Infeasible: {reason}" for reason in _distinct_reasons(plans.refused)[:_REASONS]),
        ),
        columns=(Column(title="", prose=True), *columns),
        rows=tuple(
            _row(record, unit_ns, plans, plans.as_configured and not at) for at, record in enumerate(plans.choices)
        ),
    )  # fmt: skip


def ends_note(records: Sequence[PlanRecord]) -> tuple[str, ...]:
    """An explanation of layouts with fewer layers on the first and the last pipeline stage, with the numbers of the
    first of them; empty if there are none."""
    ends = next(filter(None, (record.plan.job.layout.end_less_layers for record in records)), None)
    if ends is None:
        return ()
    first, last = ends
    fewer = units.counted(first, "layer")
    return (f"{describe_ends(first, last)}: the first stage has {fewer} fewer than an even one, the last {last}.",)


def experts_note(records: Sequence[PlanRecord]) -> tuple[str, ...]:
    """An explanation of expert parallelism, if a layout has it."""
    has_experts = any(record.plan.job.layout.ep > 1 for record in records)
    return ("ep: experts are divided over ranks of the other axes; it does not multiply the devices.",) * has_experts


def _mfu_note(plans: Plans) -> str:
    """The peak that MFU refers to."""
    bill = plans.best.bill
    if not bill.peak_dtype:
        return ""
    per_device = units.show_rate(bill.peak_flops_per_s / plans.devices, "FLOP/s")
    return f"MFU: model FLOPs over the dense {bill.peak_dtype} peak, {per_device} per device."


def constants_note(plans: Plans) -> str:
    """The origin of the constants."""
    tuned = plans.constants
    origin = f"Fitted to {tuned.rows} measurements of {tuned.source}." if tuned.rows else tuned.description
    return f"Constants: {tuned.name}. {origin}"


def interval_note(plans: Plans) -> str:
    """A sentence on the meaning of the prediction interval, and whether it is calibrated."""
    others = sum(not record.plan.calibrated for record in plans.choices)
    if not others:
        return f"{INTERVAL}: four of five measured steps are expected in it."
    rows = "such steps" if others == len(plans.choices) else f"{others} of the {len(plans.choices)} layouts"
    reasons = dict.fromkeys(filter(None, (record.plan.uncalibrated_because for record in plans.choices)))
    of_first = " (the first of them)" if len(reasons) > 1 else ""
    because = f", because {next(iter(reasons))}{of_first}" if reasons else ""
    return (
        f"The {INTERVAL} is not calibrated for {rows}{because}: {ASSUMED_LOW:g} to {ASSUMED_HIGH:g} times the "
        "prediction are assumed. trainyard probe fit calibrates it with runs."
    )


def _distinct_reasons(refused: Sequence[str]) -> list[str]:
    """One entry per distinct reason; entries begin with their layout."""
    return list({reason.partition(": ")[2]: reason for reason in reversed(refused)}.values())[::-1]


def describe_samples(samples: int, seq_len: int) -> str:
    """`256 sequences of 8,192 tokens`."""
    return f"{units.counted(samples, 'sequence')} of {units.counted(seq_len, 'token')}"


def unit_of(job: Job) -> str:
    """The unit of training samples that the workload counts, in the plural."""
    return plugins.load("workloads", job.workload).unit


def time_unit(plans: Plans) -> tuple[str, float]:
    """(name, ns) of the unit of step times."""
    return ("s", 1e9) if plans.best.plan.ledger.wall_ns >= 1e9 else ("ms", 1e6)


def _spent_columns(plans: Plans, with_notes: bool = False) -> tuple[Column, ...]:
    """Columns of the known costs of the token budget: its duration, dollars, kWh. `with_notes`: with a note on lost
    time."""
    if not plans.tokens:
        return ()
    days_note = _failure_note(plans, plans.best.bill.goodput) if with_notes else ""
    bill, unit = plans.best.bill, units.duration_unit(plans.best.bill.days)[1]
    dollars = (Column(title="$", digits=units.decimals_of_amount(bill.dollars)),) if "price" in plans.claims else ()
    kwh_digits = units.decimals_of_amount(bill.kwh)
    energy = (Column(title="kWh", digits=kwh_digits, optional=True),) if "power" in plans.claims else ()
    return (Column(title=unit, digits=1, note=days_note), *dollars, *energy)


def _spent(planned: PlanRecord | LayoutPoint, plans: Plans) -> tuple[Cell, ...]:
    """Cells of the columns of `_spent_columns`: the cost of the token budget with this layout."""
    per_day, unit = units.duration_unit(plans.best.bill.days)
    amounts = {unit: per_day * planned.bill.days, "$": planned.bill.dollars, "kWh": planned.bill.kwh}
    return tuple(amounts[column.title] for column in _spent_columns(plans))


def _failure_note(plans: Plans, goodput: Goodput | None) -> str:
    """A note on the time lost to failures, restarts and checkpoints; empty if they are unknown."""
    if goodput is None or not {"mtbf", "restart"} <= plans.claims.keys():
        return ""
    low, share, high = (f"{100 * part:.1f}" for part in (goodput.low, goodput.share, goodput.high))
    affected = "Days and dollars" if "price" in plans.claims else "Days"
    restart, every = plans.claims["restart"].value / 60, goodput.every_s / 60
    return (
        f"{affected} assume that {share} % of the time is training ({low} to {high} in four of five runs): "
        f"a failure every {goodput.mtbf_s / 3600:.1f} h ({plans.claims['mtbf'].source}), {restart:.0f} min to "
        f"restart, a checkpoint of {goodput.save_s:.3g} s every {every:.1f} min."
    )


def _unpriced(plans: Plans) -> tuple[str, ...]:
    """A note if costs are asked for but the machine has no known price."""
    if not plans.tokens or "price" in plans.claims:
        return ()
    return (f"No price of {plans.machine} is known. For dollars, copy its file, add `price` and pass the copy.",)


def _powered(plans: Plans) -> tuple[str, ...]:
    """A note on the assumptions of the energy figures, of which other tables have some too; none if there are none."""
    if not plans.tokens or not {"power", "overhead"} <= plans.claims.keys():
        return ()
    power, overhead, cap = plans.claims["power"], plans.claims["overhead"], plans.claims.get("power_cap")
    full = f"their full {power.value:,.0f} W"
    watts = f"the cap of {cap.value:,.0f} W, not {full}" if cap and cap.value < power.value else full
    return (
        f"kWh: devices at {watts} ({power.source}), times {overhead.value:g} for hosts, "
        f"networks and cooling ({overhead.source}).",
    )


_USUAL = ("none", "1f1b", "interleaved")
"""Schedules that need no mention next to a layout."""


def short(layout: Layout, schedule: str = "none", offload: bool = False) -> str:
    """A layout's name without sequence and loss parallelism, the default at tp > 1; their absence is named."""
    usual_parallelism = layout.tp == 1 or (layout.sequence_parallel and layout.loss_parallel)
    neither = not (layout.sequence_parallel or layout.loss_parallel)
    absence = ", no sequence or loss parallelism" if neither and not usual_parallelism else ""
    plain = replace(layout, sequence_parallel=False, loss_parallel=False) if usual_parallelism else layout
    order = "" if schedule in _USUAL else f", {schedule}"
    shards = f", ZeRO-{layout.zero}" if layout.dp_shard == 1 < layout.cp and layout.zero != 3 else ""
    return str(plain).replace(f", {layout.cp_method}", "") + shards + absence + order + ", offloaded" * offload


def activation_checkpoint(recipe: Recipe) -> str:
    """The activation checkpointing of a recipe in words: `full, 1 in 2` if every second block is checkpointed."""
    return recipe.activation_checkpoint + (
        f", 1 in {recipe.activation_checkpoint_every}" if recipe.activation_checkpoint_every > 1 else ""
    )


def _row(record: PlanRecord, unit_ns: float, plans: Plans, as_configured: bool) -> tuple[Cell, ...]:
    """The cells of a layout's row, with times divided by `unit_ns`; `as_configured`: that of the checked one."""
    plan, bill = record.plan, record.bill
    job = plan.job
    cells: list[Cell] = [
        short(job.layout, job.recipe.schedule, job.recipe.offload) + ", as it is" * as_configured
        + tied_layouts.baseline_mark(record),
        job.recipe.micro_batch_size, activation_checkpoint(job.recipe), plan.ledger.wall_ns / unit_ns,
        f"{plan.low / unit_ns:,.2f} to {plan.high / unit_ns:,.2f}",
        *tied_layouts.versus_cells(record, plans), bill.tokens_per_s, 100 * bill.mfu,
        record.reserved_bytes / 1e9,
    ]  # fmt: skip
    return (*cells, *_spent(record, plans))


def variants(plans: Plans) -> tuple[Table, ...]:
    """The table of the variants that are folded into the rows of `layouts`, as far as the search found them; empty if
    it found none."""
    unit, unit_ns = time_unit(plans)
    rows: list[tuple[Cell, ...]] = [
        (
            short(point.layout, point.schedule, point.offload), point.micro_batch_size, point.activation_checkpoint,
            point.wall_ns / unit_ns, 100 * point.bill.mfu, point.reserved / 1e9,
        )
        for record in plans.choices
        for point in record.variants
    ]  # fmt: skip
    columns = (
        Column(title="", prose=True), Column(title="mbs", digits=0), Column(title="recompute"),
        Column(title=f"step, {unit}", digits=2), Column(title="MFU, %", digits=1), Column(title="memory, GB", digits=1),
    )  # fmt: skip
    folded = sum(record.folded for record in plans.choices)
    note = f"{len(rows)} of {folded:,} variants of the rows above, the fastest; the search ended before the others."
    return (Table(title="Folded variants", notes=(note,), columns=columns, rows=tuple(rows)),) if rows else ()


def scaling(plans: Plans) -> tuple[Table, ...]:
    """The tables of strong scaling (the same batch) and weak scaling (a batch that grows with the devices)."""
    device_scaling = plans.scaling
    if device_scaling is None:
        return ()
    weak = "Samples per device stay the same. A larger batch may need more tokens to reach the same loss."
    return (
        _scaled("Devices, same batch", device_scaling.strong, plans, device_scaling.summary, with_layouts=True),
        _scaled("Devices, batch grows", device_scaling.weak, plans, weak, with_layouts=False),
    )


def _scaled(title: str, scaling_points: Sequence[ScalingPoint], plans: Plans, note: str, with_layouts: bool) -> Table:
    """The table of the best plans for other numbers of devices. `with_layouts`: show layouts instead of batch sizes.
    `note`: a sentence below the table."""
    unit, unit_ns = time_unit(plans)
    columns = (
        Column(title="devices", digits=0), *(() if with_layouts else (Column(title="samples", digits=0),)),
        Column(title=f"step, {unit}", digits=2),
        Column(title=f"{unit_of(plans.best.plan.job)}/s", digits=0, optional=True),
        Column(title="MFU, %", digits=1),
        Column(title="efficiency, %", digits=1), *_spent_columns(plans),
        *((Column(title="layout", prose=True),) if with_layouts else ()),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for scaled in scaling_points:
        cells: tuple[Cell, ...] = (scaled.devices,) if with_layouts else (scaled.devices, scaled.samples)
        if point := scaled.point:
            cells += (point.wall_ns / unit_ns, point.bill.tokens_per_s, 100 * point.bill.mfu, 100 * scaled.efficiency)
            cells += (
                *_spent(point, plans),
                *((short(point.layout, point.schedule, point.offload),) if with_layouts else ()),
            )
        rows.append((*cells, *[None] * (len(columns) - len(cells))))
    notes = (note, _FASTEST_OF_EACH, *_offloaded_note(scaling_points), *_infeasible_notes(scaling_points))
    return Table(title=title, notes=notes, columns=columns, rows=tuple(rows))


def counts_note(plans: Plans) -> str:
    """The numbers of layouts that were searched and that fit; empty without a search."""
    if not plans.searched:
        return ""
    divide, fit = "divides" if plans.searched == 1 else "divide", "fits" if plans.fit_in_memory == 1 else "fit"
    return f"{units.counted(plans.searched, 'layout')} {divide} the work evenly, {plans.fit_in_memory:,} {fit}. "


def _offloaded_note(scaling_points: Sequence[ScalingPoint]) -> tuple[str, ...]:
    """A note on the numbers of devices whose layout offloads."""
    offloaded = [f"{scaled.devices:,}" for scaled in scaling_points if scaled.point and scaled.point.offload]
    if not offloaded:
        return ()
    devices = "device" if offloaded == ["1"] else "devices"
    return (f"Offloaded to host memory, and not calibrated: the layouts for {', '.join(offloaded)} {devices}.",)


def _infeasible_notes(scaling_points: Sequence[ScalingPoint]) -> tuple[str, ...]:
    """The reasons for the numbers of devices without a layout."""
    refused = [scaled for scaled in scaling_points if scaled.reason]
    return tuple(f"{units.counted(scaled.devices, 'device')}: {scaled.reason}" for scaled in refused)


def ledger(plan: Plan) -> Table:
    """The predicted time of a step in ms by account, in order of precedence."""
    step_ns = plan.ledger.wall_ns
    rows: list[tuple[Cell, ...]] = [
        (account.label, ns / 1e6, percent(ns, step_ns)) for account, ns in plan.ledger.by_account().items() if ns
    ]
    return Table(
        title="Predicted ledger",
        notes=(f"Mean over ranks, in order of precedence. The step is {units.show_ns(step_ns)} ns exactly.",),
        columns=(Column(title="account"), Column(title="ms", digits=1), Column(title="share, %", digits=1)),
        rows=(*rows, ("Step", step_ns / 1e6, 100.0)),
    )


def percent(part: float, whole: float) -> Cell:
    """The share of a part in percent; `<0.1` if it would round to nothing."""
    return "<0.1" if 0 < part < _LEAST_SHARE * whole else 100 * part / whole


def part_label(part: str) -> str:
    """The name in words of a part of memory, a key of `Plan.memory`."""
    return OTHER_PARTS.get(part) or words.MEMORY[part].label


def memory(plans: Plans) -> Table:
    """The table of the first plan's memory in GB by part on the fullest rank."""
    plan, limit = plans.best.plan, plans.memory_bytes
    rows: list[tuple[Cell, ...]] = [(part_label(part), size / 1e9) for part, size in plan.memory.items() if size]
    allocated = sum(plan.memory.values())
    exact: list[tuple[Cell, ...]] = [
        (f"Counted on rank {rank:,} in a simulated run", size / 1e9) for rank, size in plans.exact_bytes.items()
    ]
    return Table(
        title="Memory of the fullest rank",
        notes=(),
        columns=(Column(title="part"), Column(title="GB", digits=1)),
        rows=(
            *rows,
            ("Allocated", allocated / 1e9),
            *exact,
            ("Reserved", plans.best.reserved_bytes / 1e9),
            ("Device capacity", limit / 1e9),
            *((("In host memory", waiting / 1e9),) if (waiting := plans.best.host_bytes) else ()),
        ),
    )


def collectives(plans: Plans) -> Table:
    """The table of the collectives of data parallelism in a step of the first plan, on one rank."""
    return Table(
        title="Collectives of data parallelism",
        notes=("Per step and rank. GB: of the gathered, scattered or reduced tensors.",),
        columns=(
            Column(title="kind"),
            Column(title="axis"),
            Column(title="calls", digits=0),
            Column(title="GB", digits=3),
        ),
        rows=tuple((each.kind, each.axis, each.calls, each.bytes / 1e9) for each in plans.collectives),
    )
