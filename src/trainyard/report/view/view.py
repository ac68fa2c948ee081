"""View: everything a report shows, as plain data. The terminal and the page draw the same one.

Times are integer ns. Text fields may hold hostile names (kernels, groups): whoever draws them escapes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.finding import Finding


class KeyFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One key figure: `418.0` `ms` `step time`; `change` is what it was compared with, if anything, `worked` the
    arithmetic that gives it, where that is worth a line."""

    label: str
    value: str
    unit: str = ""
    change: str = ""
    better: bool | None = None
    means: str = ""
    worked: str = ""

    @property
    def line(self) -> str:
        """`MFU 41.2 % = ...`, or nothing."""
        return f"{self.label} {self.value} {self.unit} = {self.worked}" if self.worked else ""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the waterfall, floating from `start_ns` for `ns`; `whiskers` bound its end (ns), if known."""

    label: str
    ns: int
    start_ns: int
    colour: str
    role: Literal["ideal", "step", "total"] = "step"
    account: str = ""
    evidence: str = ""
    whiskers: tuple[int, int] | None = None


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """ns a step: `values[row][column]` of account row, rank column, and the deviation from the median rank.

    `nodes[column]` is the host of that rank (equal neighbours are drawn together); `blamed` a rank or -1.
    """

    accounts: tuple[str, ...]
    labels: tuple[str, ...]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]
    deviations: tuple[tuple[int, ...], ...]
    blamed: int = -1


class Legend(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    colour: str


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the timeline: a stream of a rank, or a CPU thread. Slice i starts at `starts[i]` ns after the
    timeline's origin, lasts `lengths[i]`, is named `names[name[i]]` and drawn as `legend[look[i]]`.

    Slices of a lane do not overlap.
    """

    rank: int
    label: str
    starts: list[int]
    lengths: list[int]
    name: list[int]
    look: list[int]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """`steps`: (label, start, stop) of each step on the first rank. `events`: how many intervals were given;
    `merged`: how many of them were folded into neighbours too close to tell apart."""

    length_ns: int
    names: list[str]
    legend: tuple[Legend, ...]
    lanes: tuple[Lane, ...]
    steps: tuple[tuple[str, int, int], ...]
    events: int
    merged: int = 0
    aligned: str = "no"


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the kernel or module table: `share` of the step's wall time, 0 to 1."""

    name: str
    account: str
    phase: str
    ns: int
    count: int
    share: float


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """`digits`: decimals to show of numbers, whose unit the head names; None for text. `prose`: text that is read to
    its end, where a name may be cut in its middle. `id`: never cut, as ids that users copy and dates. `spare`:
    left out if not all columns fit."""

    head: str
    digits: int | None = None
    prose: bool = False
    spare: bool = False
    id: bool = False


Cell = str | int | float | None


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in an order that means something, the most important first; `notes` say what they rest on. None is
    unknown."""

    title: str
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a layout by part, in the order of the legend; `reserved` with what the allocator takes beyond."""

    label: str
    sizes: tuple[int, ...]
    reserved: int


class Dot(msgspec.Struct, frozen=True, kw_only=True):
    """A layout in a chart: `wall_ns` from `low` to `high`, `reserved` bytes; or `why` so many devices have none."""

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
    why: str = ""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What a page of plans draws beside the ledger. `limit`: bytes of a device, of which the share `usable` can be had;
    `reserved` over allocated. `front`: the fastest first; `others`: shown layouts that are not on it. `devices`: those
    that were asked for."""

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
    says: str


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A whole report. `title` is the sentence that names the biggest avoidable cost; `warnings` stand above
    everything, `notes` (how the ledger came about) and `limits` at the foot. `table` is the mean ledger:
    (account, label, phase, ns, hidden_ns, count).
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
    planned: Planned | None = None
    findings: tuple[Finding, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    modules: tuple[KernelRow, ...] = ()
    tables: tuple[Table, ...] = ()
    table: tuple[tuple[str, str, str, int, int, int], ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    generated: str = ""
