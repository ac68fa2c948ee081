"""The pipeline of the first plan as tables: the causes of its bubble, and how each of its ranks spends a step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from trainyard.predict.pipeline.bubble import CAUSES, PipelineBubble
from trainyard.report.plans import plan_tables
from trainyard.report.plans.plans_file import Plans
from trainyard.report.view.view import Cell, Column, Table
from trainyard.units import counted

_LABELS = {
    "schedule": "Schedule, with equal stages",
    "host": "Host time outside the layers",
    "transfers": "Transfers between ranks",
    "layers": "Uneven or unequal layers",
    "head": "Head and loss on the last stage",
}
"""Labels of the causes of a bubble."""
_LONG_NS = 10_000_000_000
"""Time of the micro-batches of a step from which on the table of ranks is in s: in ms, 80 columns are too few."""


def pipeline(plans: Plans) -> tuple[Table, ...]:
    """The tables of the pipeline; empty if the first plan has none."""
    return (causes(plans.bubble, plans), ranks(plans.bubble)) if plans.bubble else ()


def causes(bubble: PipelineBubble, plans: Plans) -> Table:
    """The causes of the bubble in ms, mean over ranks, and as shares of the step."""
    step_ns = plans.best.plan.ledger.wall_ns
    rows: list[tuple[Cell, ...]] = [
        (_LABELS[cause], bubble.causes[cause] / 1e6, _share(bubble.causes[cause], step_ns))
        for cause in CAUSES
        if bubble.causes.get(cause)
    ]
    return Table(
        title="Causes of the pipeline bubble",
        notes=(*_formula(bubble), *_negative(bubble)),
        columns=(Column(title="cause"), Column(title="ms", digits=1), Column(title="share, %", digits=1)),
        rows=(*rows, ("Bubble, mean over ranks", bubble.bubble_ns / 1e6, _share(bubble.bubble_ns, step_ns))),
    )


def _share(part_ns: int, step_ns: int) -> Cell:
    """A part of the step in percent, which may be negative."""
    return plan_tables.percent(part_ns, step_ns) if part_ns >= 0 else 100 * part_ns / step_ns


def _formula(bubble: PipelineBubble) -> tuple[str, ...]:
    """The bubble next to that of the formula, both as shares of the time of the pipeline."""
    share = 100 * bubble.bubble_ns / bubble.pipeline_ns
    measured = f"The bubble is {share:.1f} % of the {bubble.pipeline_ns / 1e6:,.1f} ms of all micro-batches"
    if bubble.ideal_share is None:
        return (f"{measured}.",)
    ranks, stages = len(bubble.ranks), len(bubble.ranks[0].stages)
    stages_per_rank = f" x {counted(stages, 'stage')} per rank" if stages > 1 else ""
    micro_batches = f"{bubble.micro_batches:,} micro-batch{'es' * (bubble.micro_batches > 1)}"
    formula = f"{ranks - 1} / ({micro_batches}{stages_per_rank} + {ranks - 1}) = {100 * bubble.ideal_share:.1f} %"
    return (f"{measured}; with equal stages and no transfers, it would be {formula}.",)


def _negative(bubble: PipelineBubble) -> tuple[str, ...]:
    """An explanation of negative parts, if there are any."""
    is_negative = any(part < 0 for part in bubble.causes.values())
    return ("A negative part fills idle time of the parts above it.",) * is_negative


def ranks(bubble: PipelineBubble) -> Table:
    """How each rank spends the micro-batches of a step, a row for each; in s for long steps, whose ms are too wide."""
    unit, unit_ns, digits = ("s", 1e9, 3) if bubble.pipeline_ns >= _LONG_NS else ("ms", 1e6, 1)
    columns = (
        Column(title="rank"), Column(title="layers"), Column(title="forward", digits=max(digits, 2)),
        Column(title="backward", digits=max(digits, 2)), Column(title="busy", digits=digits),
        Column(title="send/recv", digits=digits), Column(title="warm-up", digits=digits),
        Column(title="steady", digits=digits), Column(title="drain", digits=digits),
    )  # fmt: skip
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            str(rank), layers_text(each.layers),
            *(
                time_ns / unit_ns
                for time_ns in (
                    each.forward_ns, each.backward_ns, each.busy_ns, each.transfer_ns, each.warmup_ns, each.steady_ns,
                    each.drain_ns,
                )
            ),
        )
        for rank, each in enumerate(bubble.ranks)
    )  # fmt: skip
    notes = (
        f"In {unit}. Layers: of each stage. Forward and backward: of a micro-batch on all stages. The others: per "
        "step, at work, exposed transfers, and idle in the warm-up, the steady state and the drain.",
    )
    return Table(title="Ranks", notes=notes, columns=columns, rows=rows)


def layers_text(layers: Sequence[int]) -> str:
    """Layers of consecutive stages: `7, 14 x 8, 7` is 7 layers, then 14 stages of 8, then 7."""
    groups = [(count, len(list(group))) for count, group in groupby(layers)]
    return ", ".join(f"{repeats} x {count}" if repeats > 1 else str(count) for count, repeats in groups)
