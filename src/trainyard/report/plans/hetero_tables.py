"""Pipelines over unlike parts: their document, and as tables the stages of the fastest and each part by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from trainyard.machine import Claim
from trainyard.predict.hetero.best_pipelines import HeteroResult, PartResult
from trainyard.predict.hetero.fleet import FleetPart
from trainyard.predict.hetero.pipeline_step import HeteroStage
from trainyard.predict.inputs.constant_sets import ConstantSet
from trainyard.predict.search import points
from trainyard.predict.search.points import LayoutPoint
from trainyard.report.plans import plan_tables as tables
from trainyard.report.plans import plans_file
from trainyard.report.plans.plans_file import SCHEMA, Apart, PlanRecord, Plans, Unlike
from trainyard.report.view.view import Cell, Column, Table


def of_mixed(mixed: HeteroResult, machines: str, tokens: float) -> Plans:
    """`machines`: as they were named. What prices and power rest on is the mean over devices."""
    parts, best = [one.part for one in mixed.alone], mixed.pipelines[0]
    fullest = next(one for one in best.stages if one.reserved == best.choice.reserved)
    return Plans(
        schema=SCHEMA, machine=machines, devices=sum(one.devices for one in parts), memory_bytes=fullest.memory,
        tokens=tokens, searched=mixed.searched, fitting=mixed.fitting, refused=(), constants=_together(mixed.tuned),
        claims=_claims(parts) if tokens else {},
        choices=tuple(
            PlanRecord(plan=one.choice.plan, bill=one.choice.bill, reserved_bytes=one.choice.reserved)
            for one in mixed.pipelines
        ),
        unlike=Unlike(
            stages=tuple(one.stages for one in mixed.pipelines), apart=tuple(_apart(one) for one in mixed.alone)
        ),
    )  # fmt: skip


def _apart(one: PartResult) -> Apart:
    price = one.part.machine.price
    return Apart(
        part=str(one.part), nodes=one.part.nodes, point=one.choice.point if one.choice else None, why=one.reason,
        dollars=price.value * one.part.devices if price else None,
    )  # fmt: skip


def _together(several: Sequence[ConstantSet]) -> ConstantSet:
    """What is said of them all."""
    alike = {one.name: one for one in several}.values()
    return replace(
        next(iter(alike)), name=" and ".join(one.name for one in alike), says=" ".join(one.says for one in alike),
        rows=sum(one.rows for one in alike), source="; ".join(one.source for one in alike), spread={}, constants={},
    )  # fmt: skip


def _claims(parts: Sequence[FleetPart]) -> dict[str, Claim]:
    every = [(plans_file.claims(one.machine), one.devices) for one in parts]
    names = [name for name in every[0][0] if all(name in known for known, _ in every)]
    return {name: _mean([(known[name], many) for known, many in every]) for name in names}


def _mean(several: list[tuple[Claim, int]]) -> Claim:
    """Of so many each."""
    value = sum(claim.value * many for claim, many in several) / sum(many for _, many in several)
    sources = dict.fromkeys(claim.source for claim, _ in several)
    return replace(several[0][0], value=value, source="; ".join(sources))


def layouts(plans: Plans) -> Table:
    """One row a layout, the fastest first; over unlike parts in their order, with the layers of their stages, and the
    interval, which is the same share of all steps, in a note."""
    table, plan = tables.layouts(plans), plans.best.plan
    if plans.unlike is None:
        return table
    low, high = (bound / plan.ledger.wall_ns for bound in (plan.low, plan.high))
    notes = (
        f"{plans.searched:,} layouts and orders of the parts divide everything, {plans.fitting:,} may fit.",
        f"Four of five measured steps are expected between {low:.2f} and {high:.2f} times what is predicted.",
        *(note.partition(" fit. ")[2] or note.partition("between them. ")[2] or note for note in table.notes),
    )
    shown = [at for at, column in enumerate(table.columns) if at and column.head not in ("from", "to")]
    rows = tuple(
        (f"{row[0]}: {_divided(stages)}", *(row[at] for at in shown))
        for stages, row in zip(plans.unlike.stages, table.rows, strict=True)
    )
    columns = (table.columns[0], *(table.columns[at] for at in shown))
    return replace(table, title="Layout: stages x layers", notes=notes, columns=columns, rows=rows)


def _divided(stages: Sequence[HeteroStage]) -> str:
    """`a100 8 x 4-5, h100 4 x 12`."""
    said: list[str] = []
    for part, some in groupby(stages, key=lambda stage: stage.part):
        counts = [stage.layers for stage in some]
        few, many = min(counts), max(counts)
        said.append(f"{part.rpartition(':')[0]} {len(counts)} x {few}{f'-{many}' if many > few else ''}")
    return ", ".join(said)


def unlike(plans: Plans) -> tuple[Table, ...]:
    """The stages of the fastest, and together beside apart; none where all devices are alike."""
    found = plans.unlike
    return () if found is None else (_stages(plans, found), _together_and_apart(plans, found))


def _stages(plans: Plans, found: Unlike) -> Table:
    """Neighbours with as many layers on the same part are one row, which shows the most that one of them waits and
    keeps."""
    stages, wall = found.stages[0], plans.best.plan.ledger.wall_ns
    rows: list[tuple[Cell, ...]] = []
    for first, some in _alike(stages):
        head, fullest, until = some[0], max(some, key=lambda stage: stage.reserved), first + len(some) - 1
        rows.append((
            f"{first} to {until}" if until > first else f"{first}", head.part,
            _layers(head, len(some), first, len(stages) - 1),
            head.forward_ns / 1e6, head.backward_ns / 1e6, 100 * max(stage.idle_ns for stage in some) / wall,
            fullest.reserved / 1e9, fullest.memory / 1e9,
        ))  # fmt: skip
    said = "Forward and backward are of a micro-batch; idle is of a step, until the last stage is done."
    return Table(
        title="Stages of the fastest",
        notes=(said, ranks(plans)),
        columns=(
            Column(head="stage"), Column(head="on"), Column(head="layers", prose=True),
            Column(head="forward, ms", digits=1), Column(head="backward, ms", digits=1),
            Column(head="idle, %", digits=1), Column(head="memory, GB", digits=1), Column(head="of", digits=0),
        ),
        rows=tuple(rows),
    )  # fmt: skip


def _alike(some: Sequence[HeteroStage]) -> Iterator[tuple[int, list[HeteroStage]]]:
    """The place of each group's first, and the group. The first stage and the last stand by themselves."""
    ends = (0, len(some) - 1)
    keys = [(one.part, one.layers, one.experts, at if at in ends else -1) for at, one in enumerate(some)]
    for _, group in groupby(range(len(some)), key=keys.__getitem__):
        places = list(group)
        yield places[0], [some[at] for at in places]


def _layers(one: HeteroStage, times: int, first: int, last: int) -> str:
    """`9, 6 of them with experts + head`."""
    said = f"{one.layers}{' each' if times > 1 else ''}"
    said += f", {one.experts} of them with experts" if 0 < one.experts < one.layers else ""
    return said + (" + embedding" if first == 0 else " + head" if first == last else "")


def ranks(plans: Plans) -> str:
    """Which nodes come first, of the fastest."""
    found = plans.unlike
    if found is None:
        return ""
    nodes = {one.part: one.nodes for one in found.apart}
    first, said = 0, []
    for part, _ in groupby(stage.part for stage in found.stages[0]):
        last = first + nodes[part] - 1
        said.append(f"{part} on node{f's {first} to {last}' if last > first else f' {first}'}")
        first = last + 1
    return f"Ranks stand in this order: {', '.join(said)}."


def _together_and_apart(plans: Plans, found: Unlike) -> Table:
    best = plans.best
    plan = best.plan
    point = points.of_job(plan.job, plan.ledger.wall_ns, plan.low, plan.high, best.reserved_bytes, best.bill)
    rows = [("together", *_reached(point, _hour(found))), *((one.part, *_row(one)) for one in found.apart)]
    return Table(
        title="Together and apart",
        notes=(verdict(plans, found),),
        columns=(
            Column(head=""), Column(head="fastest layout", prose=True), Column(head="step, s", digits=2),
            Column(head="tokens/s", digits=0), Column(head="MFU, %", digits=1),
            Column(head="$ a billion tokens", digits=0),
        ),
        rows=tuple(rows),
    )  # fmt: skip


def _row(one: Apart) -> tuple[Cell, ...]:
    return _reached(one.point, one.dollars) if one.point else (one.why, None, None, None, None)


def _reached(point: LayoutPoint, hour: float | None) -> tuple[Cell, ...]:
    """`hour`: dollars of its devices. Failures are not counted."""
    rate = point.bill.tokens_per_s
    dollars = hour / 3600 / rate * 1e9 if hour else None
    return tables.short(point.layout, offload=point.offload), point.wall_ns / 1e9, rate, 100 * point.bill.mfu, dollars


def _hour(found: Unlike) -> float | None:
    """Dollars of all parts; None where one has no price."""
    known = [one.dollars for one in found.apart if one.dollars]
    return sum(known) if len(known) == len(found.apart) else None


def verdict(plans: Plans, found: Unlike) -> str:
    """Whether it is worth to mix, in a sentence or two."""
    fit = [(one.point.bill.tokens_per_s, one) for one in found.apart if one.point]
    if not fit:
        return "No part trains the model by itself: what it takes is all of them."
    rate, (most, best) = plans.best.bill.tokens_per_s, max(fit, key=lambda one: one[0])
    if rate <= most:
        said = f"Mixing is not worth it: {best.part} by itself trains {most / rate:.2f} times as many tokens a second."
    else:
        said = f"Mixing is worth it: {rate / most:.2f} times as many tokens a second as {best.part} by itself"
        both, one = _hour(found), best.dollars
        said += f", at {both / rate * most / one:.2f} times its dollars a token." if both and one else "."
    if len(fit) == len(found.apart):
        share = 100 * rate / sum(one for one, _ in fit)
        said += (
            " A copy of the model on each part with its share of the batch could come to what the parts do apart, "
            f"added up, at most: this is {share:.0f} % of that. No framework here takes unequal shares."
        )
    return said
