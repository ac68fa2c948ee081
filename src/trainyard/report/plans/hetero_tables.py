"""Pipelines over a cluster of heterogeneous parts: their document, the stages of the fastest pipeline, and each part
alone, as tables. A part is a number of devices of one machine, such as `a100:32`; each stage is on one part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from trainyard import batch_shares
from trainyard.machine import Claim
from trainyard.predict.economics.model_size import measure_model
from trainyard.predict.economics.training_budget import TrainingBudget
from trainyard.predict.hetero.best_pipelines import HeteroResult, PartResult
from trainyard.predict.hetero.fleet import FleetPart
from trainyard.predict.hetero.pipeline_step import HeteroStage
from trainyard.predict.inputs.constant_sets import ConstantSet
from trainyard.predict.search import points
from trainyard.predict.search.points import LayoutPoint
from trainyard.report.plans import plan_tables as tables
from trainyard.report.plans import plans_file
from trainyard.report.plans.plans_file import SCHEMA, HeterogeneousCluster, PartAlone, PlanRecord, Plans
from trainyard.report.view.view import Cell, Column, Table
from trainyard.units import counted


def from_mixed(mixed: HeteroResult, machines: str, budget: TrainingBudget) -> Plans:
    """The document of a heterogeneous search. `machines`: as the user named them. The claims (price, power,
    failures) are means over devices."""
    parts, best = [alone.part for alone in mixed.alone], mixed.pipelines[0]
    fullest = next(stage for stage in best.stages if stage.reserved == best.choice.reserved)
    return Plans(
        schema=SCHEMA, machine=machines, devices=sum(part.devices for part in parts), memory_bytes=fullest.memory,
        tokens=budget.tokens, searched=mixed.searched, fit_in_memory=mixed.fitting, refused=(),
        constants=_joined_constants(mixed.tuned), claims=_claims(parts, budget) if budget.tokens else {},
        model=measure_model(best.choice.plan.job),
        choices=tuple(
            PlanRecord(plan=pipeline.choice.plan, bill=pipeline.choice.bill, reserved_bytes=pipeline.choice.reserved)
            for pipeline in mixed.pipelines
        ),
        heterogeneous=HeterogeneousCluster(
            stages=tuple(pipeline.stages for pipeline in mixed.pipelines),
            parts_alone=tuple(_part_alone(alone) for alone in mixed.alone),
        ),
    )  # fmt: skip


def _part_alone(alone: PartResult) -> PartAlone:
    """One part of a mixed cluster as if it trained alone: its fastest layout, or why there is none; $ per hour."""
    price = alone.part.machine.price
    return PartAlone(
        part=str(alone.part),
        nodes=alone.part.nodes,
        point=points.count_devices(alone.choice.point, alone.part.machine.device.ranks) if alone.choice else None,
        reason=alone.reason,
        dollars=price.value * alone.part.devices if price else None,
    )


def _joined_constants(constant_sets: Sequence[ConstantSet]) -> ConstantSet:
    """One set of the cost model's constants for the document of plans, with the names, descriptions and sources of the
    sets of all parts; it has no values, since each part is predicted with its own."""
    distinct = {constants.name: constants for constants in constant_sets}.values()
    return replace(
        next(iter(distinct)),
        name=" and ".join(constants.name for constants in distinct),
        description=" ".join(constants.description for constants in distinct),
        rows=sum(constants.rows for constants in distinct),
        source="; ".join(constants.source for constants in distinct),
        prediction_intervals={},
        constants={},
    )


def _claims(parts: Sequence[FleetPart], budget: TrainingBudget) -> dict[str, Claim]:
    """Name -> number behind the costs (price, power, failure rate), the mean over the devices of all parts; only those
    that are known for all parts."""
    claims_of_parts = [(plans_file.claims(part.machine, budget), part.devices) for part in parts]
    names = [name for name in claims_of_parts[0][0] if all(name in claims for claims, _ in claims_of_parts)]
    return {name: _mean([(claims[name], devices) for claims, devices in claims_of_parts]) for name in names}


def _mean(claims_with_devices: list[tuple[Claim, int]]) -> Claim:
    """The mean of claims, (claim, device count), weighted by device count."""
    value = sum(claim.value * devices for claim, devices in claims_with_devices) / sum(
        devices for _, devices in claims_with_devices
    )
    sources = dict.fromkeys(claim.source for claim, _ in claims_with_devices)
    return replace(claims_with_devices[0][0], value=value, source="; ".join(sources))


def layouts(plans: Plans) -> Table:
    """One row per layout, the fastest first. For heterogeneous parts, a row lists the parts in their order with the
    layers of their stages, and the interval, which is the same fraction of every step time, is in a note."""
    table, plan = tables.layouts(plans), plans.best.plan
    if plans.heterogeneous is None:
        return table
    low, high = (bound / plan.ledger.wall_ns for bound in (plan.low, plan.high))  # as multiples of the step time
    notes = (
        f"{counted(plans.searched, 'layout')} and orders of the parts divide the work evenly, "
        f"{plans.fit_in_memory:,} may fit.",
        f"{tables.INTERVAL}: {low:.2f} to {high:.2f} times the prediction.",
        *(note.removeprefix(tables.counts_note(plans)) for note in table.notes),
    )
    kept_columns = [
        at for at, column in enumerate(table.columns) if at and not column.title.startswith(tables.INTERVAL)
    ]
    rows = tuple(
        (f"{row[0]}: {stage_layers(stages)}", *(row[at] for at in kept_columns))
        for stages, row in zip(plans.heterogeneous.stages, table.rows, strict=True)
    )
    columns = (table.columns[0], *(table.columns[at] for at in kept_columns))
    return replace(table, title="Layout: stages x layers", notes=notes, columns=columns, rows=rows)


def stage_layers(stages: Sequence[HeteroStage]) -> str:
    """Stages and their layers by part, in order: `a100 8 x 4-5, h100 4 x 12` is 8 stages of 4 to 5 layers, then 4 of
    12."""
    groups: list[str] = []
    for part, group in groupby(stages, key=lambda stage: stage.part):
        counts = [stage.layers for stage in group]
        least, most = min(counts), max(counts)
        groups.append(f"{part.rpartition(':')[0]} {len(counts)} x {least}{f'-{most}' if most > least else ''}")
    return ", ".join(groups)


def part_tables(plans: Plans) -> tuple[Table, ...]:
    """The stages of the fastest pipeline, and the mix compared with each part alone; empty for identical devices."""
    hetero = plans.heterogeneous
    return () if hetero is None else (_stages(plans, hetero), _together_and_apart(plans, hetero))


def _stages(plans: Plans, hetero: HeterogeneousCluster) -> Table:
    """The table of the fastest pipeline's stages. Consecutive stages with equal layers on the same part share a row,
    which shows the maximum of their idle time and memory. Memory: `reserved` bytes of the fullest rank, of the `memory`
    bytes of its device."""
    stages, wall = hetero.stages[0], plans.best.plan.ledger.wall_ns
    rows: list[tuple[Cell, ...]] = []
    for first, group in _equal_stages(stages):
        head, fullest, until = group[0], max(group, key=lambda stage: stage.reserved), first + len(group) - 1
        rows.append((
            f"{first} to {until}" if until > first else f"{first}", head.part,
            _layers(head, stage_count=len(group), first=first, last=len(stages) - 1),
            head.forward_ns / 1e6, head.backward_ns / 1e6, 100 * max(stage.idle_ns for stage in group) / wall,
            fullest.reserved / 1e9, fullest.memory / 1e9,
        ))  # fmt: skip
    note = "Forward and backward are per micro-batch; idle is per step, until the last stage is done."
    return Table(
        title="Stages of the fastest layout",
        notes=(note, ranks(plans)),
        columns=(
            Column(title="stage"), Column(title="on"), Column(title="layers", prose=True),
            Column(title="forward, ms", digits=1), Column(title="backward, ms", digits=1),
            Column(title="idle, %", digits=1), Column(title="memory, GB", digits=1), Column(title="of", digits=0),
        ),
        rows=tuple(rows),
    )  # fmt: skip


def _equal_stages(stages: Sequence[HeteroStage]) -> Iterator[tuple[int, list[HeteroStage]]]:
    """(index of the first stage, stages) of each run of equal stages. The first and the last stage are never
    grouped."""
    ends = (0, len(stages) - 1)
    keys = [(stage.part, stage.layers, stage.experts, at if at in ends else -1) for at, stage in enumerate(stages)]
    for _, group in groupby(range(len(stages)), key=keys.__getitem__):
        indices = list(group)
        yield indices[0], [stages[at] for at in indices]


def _layers(stage: HeteroStage, stage_count: int, first: int, last: int) -> str:
    """The layers of a stage in words: `9, 6 of them with experts + head`. `stage_count`: of equal stages in the row;
    `first`, `last`: indices of the row's first stage and of the pipeline's last."""
    text = f"{stage.layers}{' each' if stage_count > 1 else ''}"
    text += f", {stage.experts} of them with experts" if 0 < stage.experts < stage.layers else ""
    return text + (" + embedding" if first == 0 else " + head" if first == last else "")


def ranks(plans: Plans) -> str:
    """The order of the nodes in the fastest layout, from rank 0."""
    hetero = plans.heterogeneous
    if hetero is None:
        return ""
    nodes = {part.part: part.nodes for part in hetero.parts_alone}
    first, placements = 0, []
    for part, _ in groupby(stage.part for stage in hetero.stages[0]):
        last = first + nodes[part] - 1
        placements.append(f"{part} on node{f's {first} to {last}' if last > first else f' {first}'}")
        first = last + 1
    return f"Rank order: {', '.join(placements)}."


def _together_and_apart(plans: Plans, hetero: HeterogeneousCluster) -> Table:
    """The table that compares training on the whole mixed cluster with each of its parts alone: a row for each, with
    the fastest layout that fits."""
    best = plans.best
    plan = best.plan
    point = points.of_job(plan.job, plan.ledger.wall_ns, plan.low, plan.high, best.reserved_bytes, best.bill)
    rows = [
        ("together", *_point_cells(point, _dollars_per_hour(hetero))),
        *((part.part, *_row(part)) for part in hetero.parts_alone),
    ]
    return Table(
        title="Together and apart",
        notes=(verdict(plans, hetero),),
        columns=(
            Column(title=""), Column(title="fastest layout", prose=True), Column(title="step, s", digits=2),
            Column(title="tokens/s", digits=0), Column(title="MFU, %", digits=1),
            Column(title="$ a billion tokens", digits=0),
        ),
        rows=tuple(rows),
    )  # fmt: skip


def _row(part: PartAlone) -> tuple[Cell, ...]:
    """Cells of a part that trains alone; the reason in place of a layout if it cannot."""
    return _point_cells(part.point, part.dollars) if part.point else (part.reason, None, None, None, None)


def _point_cells(point: LayoutPoint, dollars_per_hour: float | None) -> tuple[Cell, ...]:
    """Cells of a layout: name, step in s, tokens/s, MFU in %, dollars per billion tokens. `dollars_per_hour`: of the
    devices; None if unknown. Failures are not counted."""
    rate = point.bill.tokens_per_s
    dollars = dollars_per_hour / 3600 / rate * 1e9 if dollars_per_hour else None
    return tables.short(point.layout, offload=point.offload), point.wall_ns / 1e9, rate, 100 * point.bill.mfu, dollars


def _dollars_per_hour(hetero: HeterogeneousCluster) -> float | None:
    """Dollars per hour of all parts; None if one has no price."""
    prices = [part.dollars for part in hetero.parts_alone if part.dollars]
    return sum(prices) if len(prices) == len(hetero.parts_alone) else None


def verdict(plans: Plans, hetero: HeterogeneousCluster) -> str:
    """Whether mixing pays off, in one or two sentences."""
    fit = [(part.point.bill.tokens_per_s, part) for part in hetero.parts_alone if part.point]
    if not fit:
        return "No part can train the model alone: all of them are needed."
    rate, (best_rate, best) = plans.best.bill.tokens_per_s, max(fit, key=lambda rated: rated[0])
    if rate <= best_rate:
        text = f"Mixing is not worth it: {best.part} alone trains {best_rate / rate:.2f} times as many tokens a second."
    else:
        text = f"Mixing is worth it: {rate / best_rate:.2f} times as many tokens a second as {best.part} alone"
        mixed_hour, alone_hour = _dollars_per_hour(hetero), best.dollars  # dollars per hour
        text += (
            f", at {mixed_hour / rate * best_rate / alone_hour:.2f} times its dollars a token."
            if mixed_hour and alone_hour
            else "."
        )
    if len(fit) == len(hetero.parts_alone):
        share = 100 * rate / sum(tokens_per_s for tokens_per_s, _ in fit)
        text += (
            " Data parallelism over the parts, each with its own share of the batch, could reach at most the sum of "
            f"the parts alone: this is {share:.0f} % of that. {_suggest_shares(fit)}"
        )
    return text


def _suggest_shares(fit: Sequence[tuple[float, PartAlone]]) -> str:
    """A sentence on the batch shares of a device of each part, in proportion to its speed alone. `fit`: (tokens per
    second, part) of each part."""
    devices = [int(part.part.rpartition(":")[2]) for _, part in fit]
    shares = batch_shares.suggest([tokens_per_s / count for (tokens_per_s, _), count in zip(fit, devices)])
    names = ":".join(part.part.rpartition(":")[0] for _, part in fit)
    return (
        f"Only trainyard's own training supports unequal shares (batch_shares): {':'.join(map(str, shares))} for "
        f"replicas on {names} with as many devices each."
    )
