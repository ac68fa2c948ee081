"""Every pipeline over a cluster of unlike parts, as columns: what layers take on its stages, how many find room there,
and what no division of them among the stages can be below.

Each part has whole stages of as many ranks, and the parts stand one after the other, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadJob
from trainyard.job import Model
from trainyard.predict.hetero import fleet
from trainyard.predict.hetero.assign_layers import Costs
from trainyard.predict.hetero.fleet import FleetPart, PartModel
from trainyard.predict.inputs import layout_space
from trainyard.predict.inputs.cases import Cases, Column, column
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import LayoutSpace, PipelineSupport, PlannerInput
from trainyard.predict.memory.framework_memory import RESERVED
from trainyard.predict.pipeline import stages, step_bounds
from trainyard.predict.pipeline.stages import StageLayers
from trainyard.predict.pipeline.step_bounds import Parts

DENSE, ROUTED = StageLayers(column(1), column(0)), StageLayers(column(0), column(1))
"""A layer of each kind."""
MOST_RUNS = 1 << 24
"""Stages times the square of the layers, all of which are costed: 126 layers on as many stages have 2 million."""
PLAIN = PipelineSupport(schedules=("1f1b",))
"""Pipelines of one stage a rank."""


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Pipelines of as many stages, each a row of `cases`. `of`: stage -> the place in `where` of the part it runs on.
    By kind of layer: `each`: seconds of one, [case, stage]; `rooms`: most that memory holds there; `counts`: how many
    there are. `fixed`: seconds that a stage takes beside its layers."""

    cases: Cases
    where: tuple[PartModel, ...]
    of: npt.NDArray[np.intp]
    each: list[Column]
    rooms: list[Column]
    counts: list[int]
    fixed: Column

    @cached_property
    def bound(self) -> Column:
        """Seconds that no assignment of a case is below; infinite where none fits."""
        layers, each, room = sum(self.counts), np.minimum.reduce(self.each), np.maximum.reduce(self.rooms)
        pace = _pace(each, self.fixed, room, layers, 1)
        for one, most, count in zip(self.each, self.rooms, self.counts):
            pace = np.maximum(pace, _pace(one, self.fixed, most, count, 0))
        spare = layers - each.shape[1]
        total = np.sum(self.fixed + each, axis=1) + spare * np.min(each, axis=1)
        return (self.cases.accumulate - 1) * pace + total

    def costs(self, row: int, some: StageLayers, place: npt.NDArray[np.intp]) -> Costs:
        """Of one case: seconds of each stage with each run of layers; infinite where its memory does not hold them.
        `some`, `place`: as `stages.runs` has them."""
        depth, one = len(self.of), self.cases.take(np.array([row]))
        kinds = [count for count in some if count.any()]
        seconds = self.fixed[row][:, None] + sum(each[row][:, None] * count for each, count in zip(self.each, kinds))
        left = np.repeat(np.arange(depth, 0.0, -1), len(some.dense))
        every = StageLayers(*(np.tile(count, depth) for count in some))
        with np.errstate(invalid="ignore", divide="ignore"):  # of no layer at all
            need = stages.memory(one, every, left, column(left == depth)).total.reshape(depth, -1) * RESERVED
        limit = np.array([self.where[one].room for one in self.of])
        allowed = (need <= limit[:, None]) & (some.layers > 0)
        return np.where(allowed, seconds, np.inf)[:, place]


def _pace(each: Column, fixed: Column, room: Column, count: int, least: int) -> Column:
    """About the least time, never above it, in which stages have so many layers, each `least` of them."""
    low = np.max(fixed + least * each, axis=1)
    high = np.max(fixed + each * np.maximum(room, 1), axis=1)
    for _ in range(40):
        middle = (low + high) / 2
        many = np.clip(np.floor((middle[:, None] - fixed) / each), 0.0, room)
        enough = np.sum(many, axis=1) >= count
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return low


def decoder(wanted: PlannerInput) -> Model:
    """Raises `BadJob` for what has other layers."""
    model = wanted.model
    if isinstance(model, Model) and not model.pattern:
        return model
    raise BadJob(f"over unlike devices plain decoders are planned, and {model.name} is none.", "Name one machine.")


def split(wanted: PlannerInput, parts: tuple[FleetPart, ...], framework: Framework) -> LayoutSpace:
    """Every layout whose stages are whole in each part."""
    every: list[LayoutSpace] = []
    for ranks, per_node in product(
        layout_space.divisors(fleet.widest(parts)), {one.machine.ranks_per_node for one in parts}
    ):
        depth = wanted.devices // ranks
        if wanted.fixed.get("pp", depth) == depth <= wanted.model.layers:
            _check_runs(wanted, depth)
            fixed = wanted.fixed | {"pp": depth}
            every.append(layout_space.space(wanted._replace(per_node=per_node, fixed=fixed), PLAIN))
    rows = {row for one in every for row in zip(*(values.tolist() for values in one.columns.values()))}
    table = np.array(sorted(rows), np.int64).reshape(-1, len(layout_space.AXES))
    some = LayoutSpace({axis: table[:, place] for place, axis in enumerate(layout_space.AXES)})
    return some.keep(framework.allows(wanted, some))


def _check_runs(wanted: PlannerInput, depth: int) -> None:
    """Raises `BadJob` for more runs of layers than can be costed."""
    runs = depth * wanted.model.layers**2
    if runs > MOST_RUNS:
        raise BadJob(
            f"{depth:,} stages x {wanted.model.layers:,}^2 runs of layers = {runs:,}, more than {MOST_RUNS:,}: over "
            "unlike devices each is costed.",
            f"Fix fewer stages, as --fix pp={max(2, MOST_RUNS // wanted.model.layers**2)}, or name one machine.",
        )


class _PipelineRows(NamedTuple):
    """Those of one depth and one order of the parts. `none`, `layer`: by kind, bytes of a stage without a layer and of
    each, [case, stage]; `limit`: bytes of a device of each stage that can be had."""

    made: Cases
    of: npt.NDArray[np.intp]
    none: list[Column]
    layer: list[Column]
    limit: Column
    counts: list[int]

    def rooms(self, more: Column | float = 0.0) -> list[Column]:
        """By kind: most layers that memory holds, with so many bytes `more` on each device."""
        limit = self.limit + more
        return [np.maximum(np.floor((limit - none) / layer + 1e-6), 0.0) for none, layer in zip(self.none, self.layer)]

    def fits(self, rooms: list[Column]) -> npt.NDArray[np.bool_]:
        """Which cases may: each stage has a layer, and each kind has room, and all together."""
        any_ = np.maximum.reduce(rooms)
        enough = [np.sum(most, axis=1) >= count for most, count in zip(rooms, self.counts)]
        return np.logical_and.reduce([*enough, np.sum(any_, axis=1) >= sum(self.counts), np.min(any_, axis=1) >= 1])


def _rows(
    wanted: PlannerInput, every: LayoutSpace, framework: Framework, where: tuple[PartModel, ...]
) -> Iterator[_PipelineRows]:
    model = decoder(wanted)
    routed = model.layers - model.dense_layers if model.experts else 0
    kinds = [(kind, count) for kind, count in ((DENSE, model.layers - routed), (ROUTED, routed)) if count]
    for depth in np.unique(every.columns["pp"]).tolist():
        some = every.keep(every.columns["pp"] == depth)
        made = layout_space.as_cases(wanted, some, framework.keeps).take(np.arange(len(some)))
        none, layer = zip(*(_bytes(made, kind, depth) for kind, _ in kinds), strict=True)
        for order in fleet.orders(tuple(one.part for one in where)):
            of = np.repeat(order, [where[one].part.ranks * depth // wanted.devices for one in order])
            limit = np.array([one.room for one in where])[of]
            yield _PipelineRows(made, of, list(none), list(layer), limit, [count for _, count in kinds])


def lines(wanted: PlannerInput, every: LayoutSpace, framework: Framework, where: tuple[PartModel, ...]) -> list[Lines]:
    """All pipelines that may fit, where any does."""
    found: list[Lines] = []
    for rows in _rows(wanted, every, framework, where):
        rooms = rows.rooms()
        fits = rows.fits(rooms)
        if fits.any():
            found.append(_line(rows.made.take(fits), where, rows.of, [most[fits] for most in rooms], rows.counts))
    return found


def missing(wanted: PlannerInput, every: LayoutSpace, framework: Framework, where: tuple[PartModel, ...]) -> float:
    """Bytes more on each device with which one of these pipelines would fit."""
    least = np.inf
    for rows in _rows(wanted, every, framework, where):
        low = np.zeros(len(rows.made))
        high = np.max([none + layer * wanted.model.layers for none, layer in zip(rows.none, rows.layer)], axis=(0, 2))
        for _ in range(40):
            middle = (low + high) / 2
            enough = rows.fits(rows.rooms(middle[:, None]))
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        least = min(least, float(np.min(high)))
    return least


def _line(
    made: Cases, where: tuple[PartModel, ...], of: npt.NDArray[np.intp], rooms: list[Column], counts: list[int]
) -> Lines:
    parts = [step_bounds.parts(made, one.hardware, one.values) for one in where]
    last = parts[of[-1]]
    fixed = np.stack([np.full(len(made), parts[one].beside) for one in of], axis=1)
    sent = hops(made, where, of, parts)
    fixed[:, :-1] += sent
    fixed[:, 1:] += sent
    fixed[:, -1] += last.ahead + last.back + last.loss
    each = [
        np.stack([np.broadcast_to(kind.ahead + kind.back, len(made)) for kind in alike], axis=1)[:, of]
        for alike in zip(*(one.kinds for one in parts), strict=True)
    ]
    return Lines(cases=made, where=where, of=of, each=each, rooms=rooms, counts=counts, fixed=fixed)


def hops(made: Cases, where: tuple[PartModel, ...], of: npt.NDArray[np.intp], parts: list[Parts]) -> Column:
    """Seconds from each stage but the last to the next one: [case, stage]."""
    found: list[Column] = []
    for mine, next_ in pairwise(of):
        one, other = where[mine], where[next_]
        far = mine != next_
        sent = (
            stages.across(made, (one.hardware, one.values), (other.hardware, other.values)) if far else parts[mine].hop
        )
        found.append(np.broadcast_to(sent, len(made)))
    return np.stack(found, axis=1)


def _bytes(made: Cases, kind: StageLayers, depth: int) -> tuple[Column, Column]:
    """On each stage, of what stands there without a layer, and of a layer: [case, stage]. Both grow evenly with the
    micro-batches that are kept."""

    def at(left: int, begins: int, layers: int) -> Column:
        run = StageLayers(*(layers * one for one in kind))
        return np.broadcast_to(stages.memory(made, run, column(left), column(begins)).total * RESERVED, len(made))

    left = np.arange(depth, 0, -1)
    kept = np.minimum(left, made.accumulate[:, None])
    one, two = (
        np.concatenate(
            [
                at(depth, 1, layers)[:, None],
                _between(at(max(depth - 1, 2), 0, layers), at(2, 0, layers), kept[:, 1:-1]),
                at(1, 0, layers)[:, None],
            ],
            axis=1,
        )
        for layers in (1, 2)
    )
    return 2 * one - two, two - one


def _between(most: Column, least: Column, kept: Column) -> Column:
    """Of the stages between the first and the last, from those with most and with least micro-batches kept."""
    if not kept.shape[1]:
        return kept
    high, low = kept[:, :1], kept[:, -1:]
    share = (kept - low) / np.maximum(high - low, 1.0)
    return least[:, None] + (most - least)[:, None] * share
