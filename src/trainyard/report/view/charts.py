"""Charts of a page as plain data: series of a run, roofline, bus bandwidth, pipeline schedule, and goodput.

Times are integer ns unless stated. Text fields may hold hostile names: renderers must escape them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.report.view.memory_curve import MemoryCurve, MemoryKind


class SeriesEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a run. `step`: the number of the step at which it is drawn, counted from 1."""

    step: int
    kind: Literal["fault", "checkpoint", "resume"]
    label: str
    text: str = ""


class RunSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Columns with an element for each shown step of a run. `steps`: number of the step, counted from 1; `wall_ns`: its
    time on the slowest rank; `losses`: of rank 0, None if not reported or not finite; `excluded`: why the step does not
    count in figures (`warm-up`, `profiled`, `skipped`), or empty. `stride`: every `stride`-th step is shown."""

    steps: tuple[int, ...]
    wall_ns: tuple[int, ...]
    losses: tuple[float | None, ...]
    excluded: tuple[str, ...]
    events: tuple[SeriesEvent, ...] = ()
    loss_unit: str = ""
    stride: int = 1


class RooflinePoint(msgspec.Struct, frozen=True, kw_only=True):
    """An op with one set of shapes. `label`, `colour`: of its account; `ns`: time per step and rank; `intensity`: FLOPs
    per byte; `flops_rate`: FLOP/s; `bound`: the limit that applies; `reachable_ns`: the least time on the device, None
    if unknown."""

    op: str
    shape: str
    account: str
    label: str
    colour: str
    phase: str
    dtype: str
    count: float
    ns: int
    intensity: float
    flops_rate: float
    bound: str
    reachable_ns: int | None = None


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The peak FLOP/s of a number format."""

    dtype: str
    flops_rate: float


class RooflineChart(msgspec.Struct, frozen=True, kw_only=True):
    """Ops by arithmetic intensity and rate. `bandwidth`: bytes/s of the device's memory, None if no machine file
    describes the device; `covered_ns` of `compute_ns`: compute time of the shown ops, per step and rank."""

    device: str
    points: tuple[RooflinePoint, ...]
    roofs: tuple[Roof, ...]
    bandwidth: float | None
    covered_ns: int
    compute_ns: int


class BandwidthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one kind, group and range of sizes. `size`: median bytes; `busbw`, `slowest`, `fastest`: bytes/s;
    `is_exact`: timed from the last arrival, else the bandwidth is a lower bound."""

    collective: str
    label: str
    colour: str
    group: str
    members: int
    size: int
    count: int
    busbw: int
    slowest: int
    fastest: int
    is_exact: bool
    verdict: str


class LinkRate(msgspec.Struct, frozen=True, kw_only=True):
    """The published rate of a link between ranks, bytes/s per device and direction."""

    name: str
    rate: int


class BandwidthChart(msgspec.Struct, frozen=True, kw_only=True):
    points: tuple[BandwidthPoint, ...]
    links: tuple[LinkRate, ...]


MOST_OPERATIONS = 4096
"""Operations of a pipeline chart; of larger schedules, the first ranks or micro-batches are shown."""


class PipelineChart(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline schedule: columns with an element for each operation. `ranks`: the rows; `rank`: an index into them;
    `kinds`: `F` forward, `B` backward, `I` and `W` its halves, the gradients of inputs and of weights; `stage`: -1 if
    unknown; `start`, `length`: `ticks` of them are one `unit`. `note`: how the times were obtained."""

    ranks: tuple[str, ...]
    rank: tuple[int, ...]
    kinds: str
    stage: tuple[int, ...]
    micro: tuple[int, ...]
    start: tuple[int, ...]
    length: tuple[int, ...]
    unit: Literal["ns", "forward passes"]
    ticks: int = 1
    title: str
    note: str


class GoodputPart(msgspec.Struct, frozen=True, kw_only=True):
    """A use of a running job's time, in seconds."""

    cause: str
    label: str
    means: str
    colour: str
    seconds: float


class MemoryChart(msgspec.Struct, frozen=True, kw_only=True):
    """Allocated bytes over time on the rank with the highest peak. `device`: in words; `kinds`: those of `curve`;
    `held`: label of a kind -> bytes at the peak; `length_ns`: of the drawn time; `steps`: (label, ns of its start) of
    each part of the window; `note`: how the bytes were obtained; `table`: title of the table of what held the peak,
    empty if there is none."""

    rank: int
    device: str
    kinds: tuple[MemoryKind, ...]
    curve: MemoryCurve
    held: dict[str, int]
    length_ns: int
    steps: tuple[tuple[str, int], ...]
    note: str
    table: str = ""


class ExpertLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of each expert in the recorded steps of a run, over the global batch. `steps`: number of the step, counted
    from 1; `tokens[s][l][e]`: of expert e of `layers[l]` in step s; `table`: title of the table of the layers."""

    layers: tuple[str, ...]
    experts: int
    steps: tuple[int, ...]
    tokens: tuple[tuple[tuple[int, ...], ...], ...]
    table: str = ""


class Charts(msgspec.Struct, frozen=True, kw_only=True):
    """The charts for which there are data."""

    series: RunSeries | None = None
    roofline: RooflineChart | None = None
    bandwidth: BandwidthChart | None = None
    pipeline: PipelineChart | None = None
    goodput: tuple[GoodputPart, ...] = ()
    memory: MemoryChart | None = None
    experts: ExpertLoad | None = None
