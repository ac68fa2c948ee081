"""Plans on one screen: the best layout in a sentence, a few layouts, the largest accounts and parts of memory."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.plan import Plan
from trainyard.predict.economics.step_cost import Bill
from trainyard.predict.inputs.prediction_interval import ASSUMED_HIGH, ASSUMED_LOW
from trainyard.predict.memory.framework_memory import USABLE
from trainyard.predict.pipeline import partition
from trainyard.report.plans import budget_summary, hetero_tables, pipeline_tables, tied_layouts
from trainyard.report.plans import plan_tables as tables
from trainyard.report.plans.plans_file import PlanRecord, Plans
from trainyard.report.view.next_step import NextStep
from trainyard.report.view.view import Cell, Column, Table
from trainyard.units import counted, duration_unit, show_rate

_LAYOUTS, _LAYOUTS_WITH_DAYS, _FEWEST_LAYOUTS = 5, 4, 3
"""Rows of the table of layouts. A layout takes two lines of 80 columns, three with days or with fewer layers on some
stages, four with its parts; adapters take two more lines above."""
_ACCOUNTS, _PARTS = 5, 3
"""Rows of the ledger and of memory; the others are one row."""
_FEWEST_IN_MILLIONS = 100_000
"""Fewest parameters that are shown in millions."""
_LEAST_WHOLE = 10
"""Least samples per second that are shown without decimals."""
_PER_RANK = "Memory: per rank, of which a device has {}."


def headline(plans: Plans) -> str:
    """The first layout with its step time, throughput, MFU and memory; and how it compares with the fastest."""
    subject, compared = tied_layouts.headline_subject(plans), tied_layouts.describe_ties(plans)
    return f"{subject}: {_recipe(plans, 0)}. {_figures(plans, plans.best)}{compared}{_fastest(plans)}"


def model_line(plans: Plans) -> str:
    """Parameters of the model, those active per token if fewer, and FLOPs per token."""
    size, unit = plans.model, tables.unit_of(plans.best.plan.job).removesuffix("s")
    if size is None:
        return ""
    active = size.active_parameters
    of_experts = f" ({_billions(active)} active per {unit})" if active < size.parameters else ""
    flops = show_rate(size.flops_per_token, "FLOPs")
    parameters = f"{_billions(size.parameters)} parameters{of_experts}{_trained(plans)}"
    return f"{parameters}, {flops} per {unit} (forward and backward)."


def interval_line(plans: Plans) -> str:
    """The meaning of the prediction interval, in a sentence."""
    if plans.best.plan.calibrated:
        return "Four of five measured steps of such trainings are expected in the interval."
    because = plans.best.plan.uncalibrated_because
    return (
        f"The interval is not calibrated{because and f', because {because}'}: {ASSUMED_LOW:g} to {ASSUMED_HIGH:g} "
        "times the prediction are assumed."
    )


def budget_lines(plans: Plans) -> tuple[str, ...]:
    """The token budget with the first layout: days, dollars, energy, failures; nothing without a budget."""
    bill = plans.best.bill
    if not plans.tokens or bill.goodput is None:
        return ()
    failures = budget_summary.failures(bill.goodput, bill.days)
    lines = (budget_summary.training(plans), failures, budget_summary.power_cap(plans))
    return tuple(line for line in lines if line)


def summary(plans: Plans) -> tuple[Table, ...]:
    """The tables of the screen: layouts, the ledger of the first and its memory; for a token budget, the next layouts
    only."""
    if plans.tokens:
        alternatives = budget_summary.alternatives(_layouts(plans), _shown_records(plans))
        return (alternatives,) if alternatives.rows else ()
    return (_layouts(plans), _ledger(plans), _memory(plans))


def _trained(plans: Plans) -> str:
    """The share of parameters that are trained, with the adapters; empty if all are."""
    settings, size = plans.fine_tuning, plans.model
    if settings is None or size is None or size.trained_parameters is None:
        return ""
    matrices = {"all": "all matrices", "attention": "attention", "mlp": "the MLP"}[settings.targets]
    frozen = ", the others in NF4" * (settings.method == "qlora")
    share = 100 * size.trained_parameters / size.parameters
    return (
        f", {share:.2g} % of them trained ({_billions(size.trained_parameters)}: adapters of rank {settings.rank} on "
        f"{matrices}{frozen})"
    )


def _billions(count: int) -> str:
    """A number of parameters in billions, below one billion in millions, and below 100,000 as it is."""
    if count < _FEWEST_IN_MILLIONS:
        return f"{count:,}"
    return f"{count / 1e9:,.1f} B" if count >= 1e9 else f"{count / 1e6:,.1f} M"


def suggest_commands(plans: Plans) -> tuple[NextStep, ...]:
    """The commands and options that the screen suggests at its end."""
    if plans.tokens:
        return (NextStep("--full", "all layouts, accounts, memory, scaling, and the source of each cost"),)
    extra = ["every account and part of memory"]
    extra += ["the stages, and each kind of device alone"] if plans.heterogeneous else []
    steps = [NextStep("--full", f"{counted(len(plans.choices), 'layout')}, {', '.join(extra)}")]
    if plans.choices[plans.as_configured :]:
        steps.append(NextStep("--out FILE", "write the launch configuration of the recommended layout"))
    if plans.as_configured:
        steps.append(NextStep("trainyard diff PLANS.json RUN", "compare --json output with a measured run"))
    elif tied_layouts.tie_note(plans) and plans.framework_runs:
        steps.append(_measure_step(plans.framework))
    else:
        steps.append(NextStep("trainyard plan check FILE", "predict your own configuration"))
    return tuple(steps)


def _measure_step(framework: str) -> NextStep:
    """The command that settles ties: it runs layouts of our own runner, and writes those of other frameworks."""
    if framework == "trainyard":
        return NextStep("trainyard plan measure MODEL", "settle ties by short runs on this machine")
    return NextStep(f"trainyard plan measure MODEL --for {framework} --out-dir FOLDER", "write the ties")


def _recipe(plans: Plans, index: int) -> str:
    """The layout, its micro-batch and activation checkpointing; of the first layout with its layers per stage."""
    recipe = plans.choices[index].plan.job.recipe
    checkpointing = tables.activation_checkpoint(recipe)
    layout = _layout(plans, index) + ("" if index else _stage_layers(plans, index))
    return f"{layout}, micro-batch {recipe.micro_batch_size}, activation checkpointing {checkpointing}"


def _layout(plans: Plans, index: int) -> str:
    """The parallelism of a layout; on unlike devices, with the layers of each stage."""
    job = plans.choices[index].plan.job
    layout = tables.short(job.layout, job.recipe.schedule, job.recipe.offload)
    return layout + (
        f" ({hetero_tables.stage_layers(plans.heterogeneous.stages[index])})" if plans.heterogeneous else ""
    )


def _stage_layers(plans: Plans, index: int) -> str:
    """The layers of each pipeline stage, in parentheses; empty if the framework divides them."""
    job = plans.choices[index].plan.job
    less = job.layout.end_less_layers
    if less is None:
        return ""
    counts = partition.layers_per_stage(job.decoder.layers, job.layout.pp * job.layout.interleave, *less)
    return f" (stages of {pipeline_tables.layers_text(counts)} layers)"


def _figures(plans: Plans, record: PlanRecord) -> str:
    """A sentence with a layout's predicted step and its 80 % interval, throughput per device, MFU and memory."""
    unit, unit_ns = tables.time_unit(plans)
    plan, bill = record.plan, record.bill
    of_peak = f" of the {bill.peak_dtype} peak" if bill.peak_dtype else ""
    calibrated = "" if plan.calibrated else ", not calibrated"
    per_rank = " per rank" if plans.ranks_per_device > 1 else ""
    memory = f"{_rounded(record.reserved_bytes / 1e9)} of {plans.memory_bytes / 1e9:.1f} GB reserved{per_rank}"
    lacking = "" if tables.fits(record, plans) else f" It does not fit: {100 * USABLE:.0f} % of the memory can be used."
    return (
        f"Predicted step: {plan.ledger.wall_ns / unit_ns:,.2f} {unit} ({tables.INTERVAL}: {plan.low / unit_ns:,.2f} to "
        f"{plan.high / unit_ns:,.2f} {unit}{calibrated}); {_per_second(bill.tokens_per_s / plans.devices)} "
        f"{tables.unit_of(plan.job)}/s/device{_without_padding(plans, bill)}, "
        f"MFU {_rounded(100 * bill.mfu)} %{of_peak}, {memory}.{lacking}"
    )


def _without_padding(plans: Plans, bill: Bill) -> str:
    """The throughput per device without padding, in parentheses; empty if the share of padding is unknown."""
    if plans.fine_tuning is None or plans.fine_tuning.padding is None:
        return ""
    padding = plans.fine_tuning.padding
    return (
        f" ({_per_second((1 - padding) * bill.tokens_per_s / plans.devices)} excluding {100 * padding:.3g} % padding)"
    )


def _per_second(samples: float) -> str:
    """Samples or tokens per second: whole, with two decimals below ten."""
    return f"{samples:,.{0 if samples >= _LEAST_WHOLE else 2}f}"


def _rounded(amount: float) -> str:
    """A positive amount with one decimal; `<0.1` if it would round to 0."""
    return "<0.1" if 0 < amount < 0.05 else f"{amount:.1f}"


def _fastest(plans: Plans) -> str:
    """How the fastest layout compares with a checked configuration; empty if none was checked."""
    if not plans.as_configured:
        return ""
    fixed = tied_layouts.with_fixed(plans)
    if len(plans.choices) == 1:
        return f" No other searched layout{fixed} fits."
    own, fastest = plans.best, plans.fastest
    if fastest.plan.ledger.wall_ns >= own.plan.ledger.wall_ns:
        return f" No other searched layout{fixed} that fits is faster."
    tied = ", but the prediction cannot show which is faster" * own.is_tied
    return (
        f" The fastest searched layout{fixed} that fits takes {tied_layouts.less_time(fastest, own)} less time{tied}: "
        f"{_recipe(plans, plans.choices.index(fastest))}."
    )


def _layouts(plans: Plans) -> Table:
    """The table of the first layouts with step time, MFU, reserved memory and, for a token budget, days."""
    unit, unit_ns = tables.time_unit(plans)
    per_day, duration = duration_unit(plans.best.bill.days)
    rows: list[tuple[Cell, ...]] = []
    shown_rows = _shown_rows(plans)
    for index in shown_rows:
        record = plans.choices[index]
        lacking = "" if tables.fits(record, plans) else " (does not fit)"
        prefix = f"As configured{lacking}: " if plans.as_configured and not index else ""
        row: tuple[Cell, ...] = (
            prefix + _layout(plans, index) + tied_layouts.baseline_mark(record),
            record.plan.job.recipe.micro_batch_size, tables.activation_checkpoint(record.plan.job.recipe),
            record.plan.ledger.wall_ns / unit_ns, *tied_layouts.versus_cells(record, plans),
            100 * record.bill.mfu, record.reserved_bytes / 1e9,
        )  # fmt: skip
        rows.append(row + ((per_day * record.bill.days,) if plans.tokens else ()))
    hidden_rows = len(plans.choices) - len(rows)
    shown_records = _shown_records(plans)
    hidden = f"{hidden_rows} more: --full." if hidden_rows else ""
    first_note = " ".join(filter(None, (hidden, tied_layouts.tie_note(plans))))
    per_rank = f" {_PER_RANK.format(plans.ranks_per_device)}" if plans.ranks_per_device > 1 else ""
    return Table(
        title="Layout",
        notes=(
            *((first_note,) if first_note else ()), *tied_layouts.baseline_notes(plans),
            tables.ABBREVIATIONS + per_rank, *tables.ends_note(shown_records), *tables.experts_note(shown_records),
            _constants(plans),
        ),
        columns=(
            Column(title="", prose=True), Column(title="mbs", digits=0), Column(title="recompute"),
            Column(title=f"step, {unit}", digits=2), *tied_layouts.versus_columns(plans),
            Column(title="MFU, %", digits=1), Column(title="memory, GB", digits=1),
            *((Column(title=duration, digits=1),) if plans.tokens else ()),
        ),
        rows=tuple(rows),
    )  # fmt: skip


def _shown_records(plans: Plans) -> list[PlanRecord]:
    """The layouts of the table of layouts."""
    return [plans.choices[index] for index in _shown_rows(plans)]


def _shown_rows(plans: Plans) -> list[int]:
    """The indices of the layouts of the table of layouts, in order: the first, the recommended, the fastest and the
    baseline, then others up to the number that fits on a screen."""
    choices = plans.choices
    is_placed = any(record.plan.job.layout.end_less_layers for record in choices)
    fewest = plans.heterogeneous or plans.fine_tuning or is_placed
    max_rows = _FEWEST_LAYOUTS if fewest else _LAYOUTS_WITH_DAYS if plans.tokens else _LAYOUTS
    important = {0, min(int(plans.as_configured), len(choices) - 1), choices.index(plans.fastest)}
    important |= {index for index, record in enumerate(choices) if record.baseline}
    others = [index for index in range(len(choices)) if index not in important]
    return sorted([*important, *others[: max(0, max_rows - len(important))]])


def _constants(plans: Plans) -> str:
    """Sentences on the framework and on the constants of the prediction: their name, and whether they were fitted."""
    tuned = plans.constants
    origin = f", fitted to {tuned.rows} measurements." if tuned.rows else f". {tuned.description}"
    framework = f"Framework: {plans.framework}. " if plans.framework else ""
    return f"{framework}Constants: {tuned.name}{origin}"


def _ledger(plans: Plans) -> Table:
    """The table of the best layout's largest predicted accounts, the others folded into one row, and their sum."""
    unit, unit_ns = tables.time_unit(plans)
    plan: Plan = plans.best.plan
    step_ns = plan.ledger.wall_ns
    accounts = [(account.label, time_ns) for account, time_ns in plan.ledger.by_account().items() if time_ns]
    rows = _largest(accounts, _ACCOUNTS, "other accounts")
    rounded = _rounding_mark([time_ns / unit_ns for _, time_ns in rows], step_ns / unit_ns, digits=2)
    return Table(
        title="Predicted ledger, mean over ranks",
        notes=(),
        columns=(Column(title=""), Column(title=unit, digits=2), Column(title="share, %", digits=1)),
        rows=(*((label, time_ns / unit_ns, tables.percent(time_ns, step_ns)) for label, time_ns in rows),
              (f"Step{rounded}", step_ns / unit_ns, 100.0)),
    )  # fmt: skip


def _memory(plans: Plans) -> Table:
    """The table of the fullest rank's memory in GB by part, with the sizes allocated, reserved and kept in host
    memory."""
    sizes = [(tables.part_label(part), size) for part, size in plans.best.plan.memory.items() if size]
    counted_bytes = max(plans.exact_bytes.values(), default=0)
    parts = _largest(sizes, _PARTS, "other parts")
    rows: list[tuple[Cell, ...]] = [(label, size / 1e9) for label, size in parts]
    rows += [("Allocated, counted in a simulated run", counted_bytes / 1e9)] if counted_bytes else []
    excess_bytes = plans.best.reserved_bytes - sum(size for _, size in sizes)
    rows.append(("Reserved beyond these parts", excess_bytes / 1e9))
    sizes_gb = [size / 1e9 for size in (*(size for _, size in parts), excess_bytes)]
    rounded = _rounding_mark(sizes_gb, plans.best.reserved_bytes / 1e9, digits=1)
    rows.append((f"Reserved, of {plans.memory_bytes / 1e9:.1f} GB{rounded}", plans.best.reserved_bytes / 1e9))
    rows += [("In host memory", plans.best.host_bytes / 1e9)] if plans.best.host_bytes else []
    return Table(
        title="Memory of the fullest rank",
        notes=(),
        columns=(Column(title=""), Column(title="GB", digits=1)),
        rows=tuple(rows),
    )


def _rounding_mark(parts: Sequence[float], total: float, digits: int) -> str:
    """A mark after the name of a total to which its parts, rounded, do not sum; empty if they do."""
    adds = round(sum(round(part, digits) for part in parts), digits) == round(total, digits)
    return "" if adds else " (parts rounded)"


def _largest(amounts: Sequence[tuple[str, int]], max_rows: int, others: str) -> list[tuple[str, int]]:
    """The largest `amounts`, (name, amount), and the sum of the rest in one row named `others` if there are several
    more."""
    ordered = sorted(amounts, key=lambda amount: -amount[1])
    if len(ordered) <= max_rows + 1:
        return ordered
    rest = ordered[max_rows:]
    return [*ordered[:max_rows], (f"{len(rest)} {others}", sum(amount for _, amount in rest))]
