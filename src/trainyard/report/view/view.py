"""View: the content of a report as plain data, rendered by the terminal, the page and the exporters.

Times are integer ns. Text fields may hold hostile names (kernels, groups): renderers must escape them.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.finding import Finding
from trainyard.report.view.charts import Charts
from trainyard.report.view.what_if_section import WhatIfSection


class KeyFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One key figure: `418.0` `ms` `step time`. `change`: a comparison, an interval, or the reason for a missing value;
    `better`: whether that is an improvement; `description`: the definition; `calculation`: the arithmetic behind the
    value."""

    label: str
    value: str
    unit: str = ""
    change: str = ""
    better: bool | None = None
    description: str = ""
    calculation: str = ""

    @property
    def line(self) -> str:
        """`MFU 41.2 % = ...`, or empty."""
        return f"{self.label} {self.value} {self.unit} = {self.calculation}" if self.calculation else ""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the waterfall, from `start_ns` for `ns`. `whiskers`: bounds of its end in ns, if known."""

    label: str
    ns: int
    start_ns: int
    colour: str
    role: Literal["ideal", "step", "total"] = "step"
    account: str = ""
    evidence: str = ""
    whiskers: tuple[int, int] | None = None


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """ns per step by account (row) and rank (column), and the deviations from the median rank.

    `nodes[column]`: host of that rank (equal neighbours are drawn together). `blamed`: a rank, or -1.
    """

    accounts: tuple[str, ...]
    labels: tuple[str, ...]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]
    deviations: tuple[tuple[int, ...], ...]
    blamed: int = -1


class RankGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Some of many ranks. `label`: their common property; `typical`: the rank that is nearest to their mean step."""

    label: str
    ranks: tuple[int, ...]
    typical: int


class RankGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of many ranks: those with similar steps, the most unusual first; by host and by pipeline stage, empty if
    unknown. `latest`: the ranks that the others wait for, by the time that they wait."""

    similar: tuple[RankGroup, ...]
    hosts: tuple[RankGroup, ...] = ()
    stages: tuple[RankGroup, ...] = ()
    latest: tuple[int, ...] = ()


class Legend(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a legend. `means`: what its colour stands for, if the label alone does not say it. `idle`: the device
    is idle then: while the `host` has not launched the next work, or after the work was `launched`."""

    label: str
    colour: str
    means: str = ""
    idle: Literal["", "host", "launched"] = ""


SliceColumn = list[int] | NDArray[np.int64]
"""A value of each slice of a lane."""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the timeline. Slice i starts at `starts[i]` ns after the timeline's origin, lasts `lengths[i]`, is
    named `names[name[i]]` and drawn as `legend[look[i]]`.

    Slices of a lane do not overlap. `kind`: `ledger` (the account that owns the rank's time), `device` (a stream of the
    rank, or a CPU thread) or `host` (spans of a thread, at one `depth` of nesting). `details`: columns of further
    values, see slice_details.py; empty for ranks without details.
    """

    rank: int
    label: str
    starts: SliceColumn
    lengths: SliceColumn
    name: SliceColumn
    look: SliceColumn
    kind: Literal["ledger", "device", "host"] = "device"
    depth: int = 0
    details: dict[str, SliceColumn] = {}


class PathOverlay(msgspec.Struct, frozen=True, kw_only=True):
    """The critical path of `steps` steps of `total_ns` ns in all, on the lanes of a timeline. `shares`: (account, its
    label, resource, ns) of its time, which add up to `total_ns`, as those of `trainyard trace critical-path`; `ranks`:
    (rank, ns) that it crosses; `one_clock`: the ranks share a clock.

    Segment i starts at `starts[i]` ns after the timeline's origin, lasts `lengths[i]`, and is in the lane with number
    `lane[i]` (-1: none) and in the share with number `share[i]`. `merged`: the number of segments merged into
    neighbours; without any, the segments of a share add up to its ns.
    """

    steps: int
    total_ns: int
    shares: tuple[tuple[str, str, str, int], ...]
    ranks: tuple[tuple[int, int], ...]
    one_clock: bool
    starts: list[int]
    lengths: list[int]
    lane: list[int]
    share: list[int]
    merged: int = 0


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """`steps`: (label, start, stop) of each step on the first rank that has all lanes; `steps_of_ranks`: the same of
    each rank whose steps differ from those, by rank. `events`: number of intervals; `merged`: number of those merged
    into neighbours too close to distinguish. `groups`: if there are many ranks, whose first lane shows which account
    owns their time; only a few ranks have further lanes. None for few ranks, which have all lanes. `stacks`: a tree of
    host spans: (the enclosing node, -1 for none; index into `span_names`) of each node. `shapes`, `phases`: texts that
    details of slices refer to. `path`: the critical path; None if it was not computed."""

    length_ns: int
    names: list[str]
    legend: tuple[Legend, ...]
    lanes: tuple[Lane, ...]
    steps: tuple[tuple[str, int, int], ...]
    steps_of_ranks: dict[int, tuple[tuple[str, int, int], ...]] = {}
    events: int
    merged: int = 0
    aligned: str = "no"
    groups: RankGroups | None = None
    stacks: tuple[tuple[int, int], ...] = ()
    span_names: list[str] = []
    shapes: list[str] = []
    phases: tuple[str, ...] = ()
    path: PathOverlay | None = None


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the kernel or module table. `share`: fraction of the step's wall time, 0 to 1."""

    name: str
    account: str
    phase: str
    ns: int
    count: int
    share: float


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """`digits`: decimals of numbers, whose unit is in the title; None for text. `prose`: text that wraps, while names
    are cut in the middle. `id`: never cut and, unless it is `optional`, never left out: ids that users copy, dates,
    and the figures that a table is about. `optional`: left out first if not all columns fit. `note`: the definition
    of the column, printed below the table if the column is."""

    title: str
    digits: int | None = None
    prose: bool = False
    optional: bool = False
    id: bool = False
    note: str = ""


Cell = str | int | float | None


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table for the terminal, pages and exports. Rows, the most important first; None is unknown. `title` heads the
    first column. `notes`: units, definitions and sources, below the table."""

    title: str
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes on the table, then those on its columns."""
        return (*self.notes, *(column.note for column in self.columns if column.note))


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a layout by part, in the order of the legend. `reserved`: total that the allocator reserves."""

    label: str
    sizes: tuple[int, ...]
    reserved: int


class Dot(msgspec.Struct, frozen=True, kw_only=True):
    """A layout in a chart: `wall_ns` with its interval from `low` to `high`, `reserved` bytes. `reason`: the reason if
    there is no layout for that number of devices."""

    label: str
    devices: int
    samples: int
    wall_ns: int = 0
    low: int = 0
    high: int = 0
    reserved: int = 0
    tokens_per_s: float = 0.0
    mfu: float = 0.0
    efficiency: float = 0.0
    days: float = 0.0
    dollars: float | None = None
    kwh: float | None = None
    reason: str = ""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """The charts of a page of plans. `limit`: bytes of a device, of which the fraction `usable` is available;
    `reserved`: ratio of reserved to allocated bytes. `front`: the Pareto front, the fastest first; `others`: shown
    layouts off the front. `devices`: the requested number. `summary`: the note on scaling."""

    parts: tuple[Legend, ...]
    stacks: tuple[Stack, ...]
    limit: float
    usable: float
    reserved: float
    devices: int
    front: tuple[Dot, ...]
    others: tuple[Dot, ...]
    strong: tuple[Dot, ...]
    weak: tuple[Dot, ...]
    summary: str


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A report. `title`: the sentence that names the largest avoidable cost. `warnings` are at the top; `notes` (how
    the ledger was computed), `limits` and `terms` (each with its definition) at the bottom. `table`: the mean ledger as
    (account, label, phase, ns, hidden_ns, count). `groups`: of many ranks, by which they are drawn; None for a few.
    """

    title: str
    subtitle: str
    chips: tuple[str, ...] = ()
    figures: tuple[KeyFigure, ...] = ()
    wall_ns: int
    bars: tuple[Bar, ...]
    bars_note: str = ""
    heat: Heat | None = None
    timeline: Timeline | None = None
    groups: RankGroups | None = None
    planned: Planned | None = None
    what_if: WhatIfSection | None = None
    charts: Charts | None = None
    findings: tuple[Finding, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    modules: tuple[KernelRow, ...] = ()
    tables: tuple[Table, ...] = ()
    table: tuple[tuple[str, str, str, int, int, int], ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    generated: str = ""
