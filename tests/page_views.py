"""Views for the tests of the page, as large and as hostile as real ones.

`python tests/page_views.py FOLDER` writes their pages to FOLDER for inspection.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np

from tests.page_charts import chart_tables, charts, what_if
from trainyard import words
from trainyard.change import Change
from trainyard.finding import Finding, Remedy
from trainyard.ledger import Account
from trainyard.report.render import html
from trainyard.report.view.view import (
    Bar,
    Heat,
    KernelRow,
    KeyFigure,
    Lane,
    Legend,
    RankGroup,
    RankGroups,
    Timeline,
    View,
)

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>window.hacked = 1</script>",
    '=HYPERLINK("http://evil")',
    "\u2028\u2029\u202eevil\x00\x1b[31m",
    "lone \ud800 surrogate",
    "${policy} $$ {{x}}",
    "\"'><svg onload=alert(1)>",
)
LOOKS = (
    "compute/matmul",
    "compute/attention",
    "compute/elementwise",
    "comm/all_gather",
    "comm/reduce_scatter",
    "compute/optimizer",
)
TILE = "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_{}x{}_{}x3_nn_align8"
CLOCKS = "rank 37 matmul 1.17x the median, clocks 1395 vs 1755 MHz"
LINKS = "node 5 links run 0.64x of the others"
BARS = (
    ("Ideal at 100 % of peak", "ideal", "", 159.7, "#c5d3f3", "6·N·T / (64 × 989 TFLOP/s)"),
    (
        "Matmul below peak",
        "step",
        "compute/matmul",
        22.6,
        "#3b6fdb",
        "wave quantisation on 24 shapes; 0.876 of achievable",
    ),
    ("Attention", "step", "compute/attention", 41.3, "#7b57c9", "memory-bound: 74 % of the HBM roofline"),
    ("Elementwise and norm", "step", "compute/elementwise", 35.8, "#9db4e0", "1,204 kernels below 20 µs"),
    ("Exposed all-gather", "step", "comm/all_gather@dp_shard", 16.2, "#e6a23c", LINKS),
    ("Exposed reduce-scatter", "step", "comm/reduce_scatter@dp_shard", 24.1, "#d9632b", LINKS),
    ("Pipeline bubble", "step", "bubble/warmup", 22.4, "#8e62c9", "(p-1)/m = 3/32 of compute"),
    ("Straggler wait", "step", "straggler/all_gather@dp_shard", 71.8, "#cf3f2e", CLOCKS),
    ("Launch gaps", "step", "launch_gap/python", 9.1, "#2f9e8f", "42 gaps over 20 µs after aten::item"),
    ("Data wait", "step", "data_wait", 0.004, "#3aa08f", "ranks 12 and 13"),
    ("Unexplained", "step", "unexplained", 15.0, "#a9adb5", ""),
)


def names() -> list[str]:
    """Sixty kernel names, as long as C++ makes them."""
    tiles = [(m, n, k) for m in (64, 128, 256) for n in (64, 128, 256) for k in (32, 64)]
    gemms = [f"void cutlass::Kernel2<{TILE}>({TILE}::Params)".format(*tile, *tile) for tile in tiles]
    flash = [
        f"void flash_fwd_kernel<Flash_fwd_kernel_traits<{d}, 128, 64, 4>, true, false>(Flash_fwd_params)"
        for d in (64, 96, 128)
    ]
    pointwise = [
        f"void at::native::vectorized_elementwise_kernel<{v}, at::native::CUDAFunctor_add<c10::BFloat16>, {i}>"
        for v in (4, 8)
        for i in range(10)
    ]
    nccl = [
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ]
    adam = ["void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"]
    return [*gemms, *flash, *pointwise, *nccl, *adam]


def timeline(ranks: int, events: int, aligned: str = "host") -> Timeline:
    """Two streams per rank; rank 37 is 17 % slower, and the collectives of node 5 take 1.5x as long."""
    rng = np.random.default_rng(7)
    known = names()
    pick = {0: range(0, 18), 1: range(18, 21), 2: range(21, 41), 3: [41], 4: [42], 5: [43]}
    compute, comm = events * 7 // (10 * ranks), events * 3 // (10 * ranks)
    lanes: list[Lane] = []
    for rank in range(ranks):
        pace = (1.17 if rank == 37 else 1.0) * rng.normal(1, 0.004)
        wire = 1.5 if 40 <= rank < 48 else 1.0
        look = np.resize([0, 2, 0, 1, 0, 2, 0, 0, 2], compute)
        look[-compute // 40 :] = 5
        lanes.append(_lane(rng, rank, "stream 7", look, 125e6 * pace / compute, pick))
        lanes.append(_lane(rng, rank, "stream 20", np.resize([3, 3, 4], comm), 120e6 * pace * wire / comm / 1.3, pick))
    length = max(lane.starts[-1] + lane.lengths[-1] for lane in lanes)
    legend = tuple(Legend(label=_label(account), colour=_colour(account)) for account in LOOKS)
    half = length // 2
    return Timeline(
        length_ns=length,
        names=known,
        legend=legend,
        lanes=tuple(lanes),
        aligned=aligned,
        steps=(("step 1190", 0, half), ("step 1191", half, length)),
        events=sum(len(lane.starts) for lane in lanes),
    )


def _lane(rng: np.random.Generator, rank: int, label: str, look: np.ndarray, mean: float, pick: dict) -> Lane:
    lengths = np.maximum(200, rng.lognormal(0, 0.8, len(look)) * mean * 0.66).astype(np.int64)
    gaps = np.maximum(0, rng.lognormal(0, 1.2, len(look)) * mean * 0.05).astype(np.int64)
    starts = np.cumsum(lengths + gaps) - lengths
    name = [list(pick[int(kind)])[int(rng.integers(len(pick[int(kind)])))] for kind in look]
    return Lane(rank=rank, label=label, starts=starts.tolist(), lengths=lengths.tolist(), name=name, look=look.tolist())


def _label(account: str) -> str:
    kind, _, detail = account.partition("/")
    return words.KINDS[kind].whats[detail].label


def _colour(account: str) -> str:
    kind, _, detail = account.partition("/")
    return words.KINDS[kind].whats[detail].colour


def heat(ranks: int) -> Heat:
    rng = np.random.default_rng(5)
    bars = [bar for bar in BARS if bar[2] and bar[2] != "unexplained"]
    deviations = rng.normal(0, 1.1e6, (len(bars), ranks)).astype(np.int64)
    if ranks > 48:
        deviations[[0, 6], 37] = 27_000_000, -27_500_000
        deviations[3:5, 40:48] = rng.normal(23e6, 1e6, (2, 8))
        deviations[6, 40:48] = rng.normal(-26e6, 1e6, 8)
        deviations[8, 12:14] = 11_000_000
    values = deviations + np.array([[round(bar[3] * 1e6)] for bar in bars]) + 30_000_000
    return Heat(
        accounts=tuple(bar[2] for bar in bars),
        labels=tuple(bar[0] for bar in bars),
        ranks=tuple(range(ranks)),
        nodes=tuple(f"node {rank // 8}" for rank in range(ranks)),
        blamed=37 if ranks > 48 else -1,
        values=tuple(map(tuple, values.tolist())),
        deviations=tuple(map(tuple, deviations.tolist())),
    )


def findings() -> tuple[Finding, ...]:
    return (
        Finding(
            rule="straggler",
            severity="high",
            account=Account("straggler", "all_gather", "dp_shard"),
            cost_ns=71_800_000,
            confidence=0.93,
            summary="Rank 37 arrives last at every collective; the other 63 ranks wait.",
            evidence="its matmuls take 1.17x the median at 1395 MHz; the others run at 1755 MHz",
            remedy=Remedy(description="Drain node 4 and check the power limit of its device 5."),
            priced="replayed",
            interval_ns=(69_100_000, 74_500_000),
            booked_ns=73_000_000,
            change=Change(text="rank:37=typical"),
        ),
        Finding(
            rule="exposed_comm",
            severity="medium",
            account=Account("comm", "reduce_scatter", "dp_shard"),
            cost_ns=24_100_000,
            confidence=0.7,
            summary="24.1 ms of reduce-scatter per step are exposed, most of it on node 5.",
            evidence="its links have 0.64x the bandwidth of the others",
            remedy=Remedy(description="Test the links of node 5; then prefetch one layer further."),
            priced="bound",
        ),
        Finding(
            rule="launch_bound",
            severity="low",
            account=Account("launch_gap", "python"),
            cost_ns=9_100_000,
            confidence=0.5,
            summary="42 calls of aten::item delay kernel launches.",
            remedy=Remedy(description="Log the loss every 50 steps."),
        ),
    )


def figures() -> tuple[KeyFigure, ...]:
    return (
        KeyFigure(
            label="step time", value="418.0", unit="ms", change="+17.4 %", better=False, description="Mean over steps."
        ),
        KeyFigure(label="MFU", value="38.2", unit="%", change="-5.7 pt", better=False),
        KeyFigure(label="per node", value="19.6", unit="k tok/s", change="-14.8 %", better=False),
        KeyFigure(label="peak memory", value="61.4", unit="GiB", change="= 0.0 %"),
    )


def bars() -> list[Bar]:
    drawn, clock = [], 0
    for label, role, account, ms, colour, evidence in BARS:
        ns = round(ms * 1e6)
        end = clock + ns
        drawn.append(
            Bar(
                label=label,
                ns=ns,
                start_ns=clock,
                colour=colour,
                role="ideal" if role == "ideal" else "step",
                account=account,
                evidence=evidence,
                whiskers=(end - 800_000, end + 900_000) if role == "step" and ns > 2_000_000 else None,
            )
        )
        clock = end
    return [*drawn, Bar(label="Measured step", ns=clock, start_ns=0, colour="#3d4045", role="total")]


def ledger_rows() -> tuple[tuple[str, str, str, int, int, int], ...]:
    rows = []
    for label, _, account, ms, _, _ in BARS[1:]:
        ns = round((ms + (BARS[0][3] if account == "compute/matmul" else 0)) * 1e6)
        rows.append((account, label, "forward", ns // 3, 900_000, 64))
        rows.append((account, label, "backward", ns - ns // 3, 2_100_000, 128))
    return tuple(rows)


def longest(kernel_names: list[str], account: str, phase: str, wall_ns: int) -> tuple[KernelRow, ...]:
    times = [40_000_000 // (index + 1) for index in range(len(kernel_names))]
    return tuple(
        KernelRow(name=name, account=account, phase=phase, ns=ns, count=64, share=ns / wall_ns)
        for name, ns in zip(kernel_names, times)
    )


def view(ranks: int = 64, events: int = 100_000, aligned: str = "host", hostile: bool = False) -> View:
    """The whole report of a run of `ranks` ranks; without a timeline if `events` is 0."""
    steps = bars()
    wall_ns = steps[-1].ns
    extra = list(HOSTILE) if hostile else []
    line = timeline(ranks, events, aligned) if events else None
    if line is not None and hostile:
        line = msgspec.structs.replace(line, names=[*extra, *line.names[len(extra) :]])
    unlike = "These two runs are not comparable: one trains, the other only infers."
    return View(
        title=HOSTILE[0] if hostile else "Rank 37 is throttled; it costs 71.8 ms of each 418 ms step",
        subtitle="llama-70b · 64 × H100 SXM · FSDP 16 × PP 4 · bf16 · seq 8192 · steps 1190–1210 ·",
        chips=(HOSTILE[1],) if hostile else ("run 7f3a91c", "vs b20e4d8"),
        figures=figures(),
        wall_ns=wall_ns,
        bars=tuple(steps),
        bars_note="every nanosecond accounted for; whiskers are 95 % intervals over 20 steps",
        heat=heat(ranks) if ranks > 1 else None,
        timeline=line,
        what_if=what_if(*extra[:1]) if line else None,
        charts=charts(*extra[:1]) if line else None,
        findings=findings(),
        kernels=longest([*extra, *names()[::2]], "compute/matmul", "forward", wall_ns),
        modules=longest([*extra, *(f"layers.{at}.mlp" for at in range(16))], "compute/matmul", "backward", wall_ns),
        tables=chart_tables(*extra[:1]) if line else (),
        table=ledger_rows(),
        warnings=(HOSTILE[-1],) if hostile else (unlike,) if aligned == "no" else (),
        notes=("Work from before the first mark is left out of the mean.",),
        limits=("Contention from hidden communication is booked as compute.", "The profiler costs 2.1 % of the step."),
        generated="trainyard 0.1.0 · trace read in 0.8 s · 2026-06-01 10:00 UTC",
    )


def many_ranks(ranks: int = 1024) -> View:
    """The report of many ranks, drawn by group: lanes of 60 slices for each, and full lanes of two ranks."""
    base = view(ranks, 60 * ranks)
    assert base.timeline is not None
    summaries = [
        msgspec.structs.replace(lane, label="all streams") for lane in base.timeline.lanes if lane.label == "stream 7"
    ]
    full = [lane for lane in view(ranks, 400 * ranks).timeline.lanes if lane.rank in (5, 37)]  # type: ignore[union-attr]
    lanes = sorted([*summaries, *full], key=lambda lane: lane.rank)
    others = tuple(rank for rank in range(ranks) if rank != 37)
    slow = tuple(range(40, 48))
    groups = RankGroups(
        similar=(
            RankGroup(label="+27.0 ms Matmul", ranks=(37,), typical=37),
            RankGroup(label="+23.0 ms Exposed all-gather", ranks=slow, typical=41),
            RankGroup(label="typical", ranks=tuple(rank for rank in others if rank not in slow), typical=5),
        ),
        hosts=tuple(
            RankGroup(label=f"node {at}", ranks=tuple(range(8 * at, 8 * at + 8)), typical=8 * at)
            for at in range(ranks // 8)
        ),
        stages=tuple(
            RankGroup(label=f"stage {at}", ranks=tuple(range(at, ranks, 4)), typical=at + 4) for at in range(4)
        ),
        latest=(37, 3),
    )
    drawn = msgspec.structs.replace(base.timeline, lanes=tuple(lanes), groups=groups)
    return msgspec.structs.replace(base, timeline=drawn, groups=groups)


VIEWS = {
    "large": view,
    "many": many_ranks,
    "two": lambda: view(2, 4000, aligned="no"),
    "eight": lambda: view(8, 20_000),
    "one": lambda: view(1, 600),
    "bare": lambda: view(1, 0),
    "hostile": lambda: view(4, 2000, hostile=True),
}

if __name__ == "__main__":
    for called, make in VIEWS.items():
        html.write(make(), Path(sys.argv[1]) / f"{called}.html")
