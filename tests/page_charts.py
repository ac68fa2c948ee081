"""What-if sections and charts for the tests of the page, with names as hostile as real ones."""

from __future__ import annotations

import math

import numpy as np

from trainyard import words
from trainyard.report.view.charts import (
    BandwidthChart,
    BandwidthPoint,
    Charts,
    ExpertLoad,
    GoodputPart,
    LinkRate,
    MemoryChart,
    PipelineChart,
    Roof,
    RooflineChart,
    RooflinePoint,
    RunSeries,
    SeriesEvent,
)
from trainyard.report.view.expert_load import expert_table
from trainyard.report.view.memory_chart import holders_table
from trainyard.report.view.memory_curve import MemoryCurve, memory_kind
from trainyard.report.view.view import Table
from trainyard.report.view.what_if_section import WhatIfDevice, WhatIfLever, WhatIfPoint, WhatIfSection
from trainyard.trace.memory.measure_profile import BEFORE_RECORDING, PeakHolder, ProfiledMemory


def what_if(name: str = "network bandwidth") -> WhatIfSection:
    """Three levers, one of them unavailable; the measured step takes 418 ms. `name`: the label of the first account."""
    return WhatIfSection(
        levers=(
            WhatIfLever(key="network", label="Network bandwidth", speeds=(1, 2, 4), assumes="Transfers are faster."),
            WhatIfLever(
                key="memory", label="Memory bandwidth", speeds=(1, 2, 4), assumes="", unavailable="No such work."
            ),
            WhatIfLever(key="no-stragglers", label="All ranks equally fast", speeds=(1, 0), assumes="No rank is late."),
        ),
        devices=(
            WhatIfDevice(label="2x network", settings=(1, 0, 0)),
            WhatIfDevice(label="2x network, typical ranks", settings=(1, 0, 1)),
        ),
        points=(
            _point((1, 0, 0), ("network=2x",), (300_000_000, 59_000_007), (50_000_000, 68_000_000)),
            _point((2, 0, 0), ("network=4x",), (300_000_000, 29_500_001), (80_000_000, 97_000_000)),
            _point((0, 0, 1), ("no-stragglers",), (310_000_000, 118_000_000), (-20_000_000, 5_000_000)),
        ),
        accounts=(("compute/matmul", name, "#3b6fdb"), ("comm/all_reduce", "Exposed all-reduce", "#e0862b")),
        wall_ns=418_000_000,
        ns=(300_000_000, 118_000_000),
        order=("no-stragglers", "network", "memory"),
        steps=20,
        combinations=5,
        command="trainyard trace what-if PATH",
        full_command="trainyard trace PATH --page FILE --what-if",
        assumes="A replay repeats the measured operations.",
    )


def _point(
    settings: tuple[int, ...], changes: tuple[str, ...], ns: tuple[int, ...], interval_ns: tuple[int, int]
) -> WhatIfPoint:
    return WhatIfPoint(
        settings=settings,
        changes=changes,
        wall_ns=sum(ns),
        recovered_ns=418_000_000 - sum(ns),
        interval_ns=interval_ns,
        ns=ns,
    )


def charts(name: str = "aten::mm") -> Charts:
    """Every chart. `name`: of an op, an event, a process group and a link."""
    return Charts(
        series=_series(name),
        roofline=_roofline(name),
        bandwidth=_bandwidth(name),
        pipeline=_pipeline(),
        goodput=tuple(
            GoodputPart(cause=cause, label=word.label, means=word.means, colour=word.colour, seconds=3.0 * number)
            for number, (cause, word) in enumerate(words.TIMES.items(), start=1)
        ),
        memory=_memory(name),
        experts=_experts(name),
    )


def chart_tables(name: str = "aten::mm") -> tuple[Table, ...]:
    """The tables below the charts of memory and experts. `name`: of an operation, a module and a layer."""
    holders = (
        PeakHolder("unknown", BEFORE_RECORDING, "", "", 30 * 2**30, 0, -1),
        PeakHolder("activation", name, name, "model.py:42 forward", 18 * 2**30, 96, 41_000_000),
        PeakHolder("gradient", "AddmmBackward0", "layers.*.mlp", "", 2 * 2**30, 3, 1_000_000),
    )
    memory = ProfiledMemory(
        device=0, ns=np.zeros(1, np.int64), by_kind=np.full((1, 1), 50 * 2**30), reserved=np.empty(0, np.int64),
        peak=0, holders=holders, missing_frees=0, mismatches=0, mismatch_bytes=0,
    )  # fmt: skip
    return holders_table(memory), expert_table(_experts(name))


def _memory(name: str) -> MemoryChart:
    """Three steps: activations grow and shrink over what was allocated before. `name`: of a step."""
    kinds = ("unknown", "activation", "gradient")
    parts = [(30, 18 * math.sin(math.pi * (at % 40) / 40), 2 * (at % 40 > 20)) for at in range(121)]
    sizes = [[round(value * 2**30) for value in column] for column in zip(*parts)]
    totals = [sum(column) for column in zip(*sizes)]
    peak = totals.index(max(totals))
    return MemoryChart(
        rank=3,
        device="device 3",
        kinds=tuple(memory_kind(kind) for kind in kinds),
        curve=MemoryCurve(
            ns=[at * 10_000_000 for at in range(121)],
            active=[],
            reserved=[60 * 2**30] * 121,
            kinds=sizes,
            peak=peak,
            timed=True,
            moments=90_000,
        ),
        held={memory_kind(kind).label: column[peak] for kind, column in zip(kinds, sizes) if column[peak]},
        length_ns=1_254_000_000,
        steps=(("step 7", 0), (f"step {name}", 400_000_000), ("step 9", 800_000_000)),
        note="Rank 3 has the highest peak of 64 ranks.",
        table="Held at the memory peak",
    )


def _experts(name: str) -> ExpertLoad:
    """5 layers of 16 experts, which become balanced over 6 recorded steps. `name`: of the first layer."""
    rng = np.random.default_rng(3)
    layers = (name, *(f"layers.{at}" for at in range(1, 5)))
    popularity = rng.lognormal(0, 1.2, (len(layers), 16))
    steps = tuple(range(1, 61, 10))
    tokens = [rng.poisson(4000 * popularity ** (1 / (1 + at))) for at in range(len(steps))]
    return ExpertLoad(
        layers=layers,
        experts=16,
        steps=steps,
        tokens=tuple(tuple(map(tuple, of_step.tolist())) for of_step in tokens),
        table="Expert load by layer",
    )


def _series(name: str) -> RunSeries:
    steps = range(1, 201)
    return RunSeries(
        steps=tuple(steps),
        wall_ns=tuple(418_000_000 + 1_000_000 * (step % 7) + (90_000_000 if step % 50 == 0 else 0) for step in steps),
        losses=tuple(None if step == 77 else 2 + 8 * math.exp(-step / 40) for step in steps),
        excluded=tuple("warm-up" if step < 3 else "skipped" if step == 77 else "" for step in steps),
        events=(
            SeriesEvent(step=120, kind="fault", label="worker death", text=name),
            SeriesEvent(step=101, kind="resume", label="resumed", text="after 6.2 s"),
            *(SeriesEvent(step=step, kind="checkpoint", label="checkpoint") for step in range(50, 201, 50)),
        ),
        loss_unit="nats a token",
    )


def _roofline(name: str) -> RooflineChart:
    rows = ((name, "compute/matmul", 180.0, 5.1e14, 90), ("aten::add_", "compute/elementwise", 0.17, 3.3e11, 35))
    return RooflineChart(
        device="NVIDIA H100 SXM 80GB",
        points=tuple(
            RooflinePoint(
                op=op,
                shape="bfloat16[8192, 8192] bfloat16[8192, 28672]",
                account=account,
                label=account,
                colour=words.OP_CLASSES[account.partition("/")[2]].colour,
                phase="forward",
                dtype="bfloat16",
                count=64.0,
                ns=ms * 1_000_000,
                intensity=intensity,
                flops_rate=rate,
                bound="compute" if intensity > 100 else "memory",
                reachable_ns=None if intensity < 1 else 70_000_000,
            )
            for op, account, intensity, rate, ms in rows
        ),
        roofs=(Roof(dtype="bfloat16", flops_rate=9.89e14),),
        bandwidth=3.35e12,
        covered_ns=125_000_000,
        compute_ns=150_000_000,
    )


def _bandwidth(name: str) -> BandwidthChart:
    return BandwidthChart(
        points=tuple(
            BandwidthPoint(
                collective=collective,
                label=words.COLLECTIVES[collective].label,
                colour=words.COLLECTIVES[collective].colour,
                group=name,
                members=8,
                size=size,
                count=12,
                busbw=round(450e9 * size / (size + 5e6)),
                slowest=round(300e9 * size / (size + 5e6)),
                fastest=round(480e9 * size / (size + 5e6)),
                is_exact=collective == "all_reduce",
                verdict="mostly moving",
            )
            for collective in ("all_reduce", "all_gather")
            for size in (4096, 262_144, 16_777_216, 268_435_456)
        ),
        links=(LinkRate(name="NVLink", rate=450_000_000_000),),
    )


def _pipeline() -> PipelineChart:
    """Two ranks, three micro-batches, 1F1B."""
    rows = ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]
    operations = [(rank, word[0], int(word[1])) for rank, row in enumerate(rows) for word in row.split()]
    clock = [0, 1_000_000]
    starts: list[int] = []
    for rank, kind, _ in operations:
        starts.append(clock[rank])
        clock[rank] += 1_000_000 if kind == "F" else 2_000_000
    return PipelineChart(
        ranks=("rank 0", "rank 1"),
        rank=tuple(rank for rank, _, _ in operations),
        kinds="".join(kind for _, kind, _ in operations),
        stage=tuple(rank for rank, _, _ in operations),
        micro=tuple(micro for _, _, micro in operations),
        start=tuple(starts),
        length=tuple(1_000_000 if kind == "F" else 2_000_000 for _, kind, _ in operations),
        unit="ns",
        title="Pipeline schedule, as recorded",
        note="first full step",
    )
