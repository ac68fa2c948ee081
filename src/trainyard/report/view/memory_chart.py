"""Memory over time of a trace whose profiler recorded allocations, and the table of what held the peak."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard import units, words
from trainyard.report.view.charts import MemoryChart
from trainyard.report.view.memory_curve import MemoryCurve, memory_kind, moments_kept
from trainyard.report.view.step_bounds import step_label
from trainyard.report.view.view import Cell, Column, Table
from trainyard.trace.align.steps import StepPart
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.memory.categories import KINDS
from trainyard.trace.memory.measure_profile import ProfiledMemory, measure_profiled_memory

_TABLE = "Held at the memory peak"
_MOST_HOLDERS = 40


class RankMemory(NamedTuple):
    """The memory of the rank with the highest peak. `parts`: of its window; `peaks`: rank -> bytes, of all ranks with
    recorded allocations."""

    rank: int
    memory: ProfiledMemory
    parts: tuple[StepPart, ...]
    peaks: dict[int, int]


def highest_memory(measured: MeasuredTrace) -> RankMemory | None:
    """The rank whose recorded allocations have the highest peak; None if no file has any."""
    highest: RankMemory | None = None
    peaks: dict[int, int] = {}
    for rank in measured.ranks:
        memory = measure_profiled_memory(rank)
        if memory is None:
            continue
        number = rank.events.rank
        peaks[number] = int(memory.allocated[memory.peak])
        if highest is None or peaks[number] > peaks[highest.rank]:
            highest = RankMemory(number, memory, rank.parts, peaks)
    return highest


def memory_chart(highest: RankMemory) -> MemoryChart:
    """The chart of a rank's memory, with its time from the beginning of the window or of the allocations."""
    memory, parts = highest.memory, highest.parts
    allocated = memory.allocated
    origin = min(int(memory.ns[0]), parts[0].start)
    # What was allocated before the recording is at the bottom of the stack.
    used = sorted(np.flatnonzero(memory.by_kind.any(axis=1)).tolist(), key=lambda kind: KINDS[kind] != "unknown")
    keep = moments_kept(memory.ns, allocated, memory.reserved if len(memory.reserved) else allocated)
    return MemoryChart(
        rank=highest.rank,
        device=f"device {memory.device}" if memory.device >= 0 else "host",
        kinds=tuple(memory_kind(KINDS[kind]) for kind in used),
        curve=MemoryCurve(
            ns=(memory.ns[keep] - origin).tolist(),
            active=[],
            reserved=memory.reserved[keep].tolist() if len(memory.reserved) else [],
            kinds=[memory.by_kind[kind][keep].tolist() for kind in used],
            peak=int(np.searchsorted(keep, memory.peak)),
            timed=True,
            moments=len(memory.ns),
        ),
        held={
            memory_kind(KINDS[kind]).label: size for kind in used if (size := int(memory.by_kind[kind, memory.peak]))
        },
        length_ns=max(int(memory.ns[-1]), parts[-1].stop) - origin,
        steps=tuple((step_label(part.label), part.start - origin) for part in parts),
        note=_note(highest),
        table=_TABLE if memory.holders else "",
    )


def holders_table(memory: ProfiledMemory) -> Table:
    """The table of what held the peak, the largest first. It has no rows if the addresses were not recorded."""
    peak_bytes = int(memory.allocated[memory.peak])
    rows: list[tuple[Cell, ...]] = [
        (
            holder.operation,
            words.MEMORY[holder.category].label,
            holder.size / 2**20,
            100 * holder.size / peak_bytes,
            holder.module,
            holder.location,
            holder.count or None,
            holder.age_ns / 1e6 if holder.age_ns >= 0 else None,
        )
        for holder in memory.holders[:_MOST_HOLDERS]
    ]
    if rest := memory.holders[_MOST_HOLDERS:]:
        size, count = sum(holder.size for holder in rest), sum(holder.count for holder in rest)
        label = units.counted(len(rest), "more operation")
        rows.append((label, "", size / 2**20, 100 * size / peak_bytes, "", "", count, None))
    columns = (
        Column(title="Operation"),
        Column(title="Category"),
        Column(title="MiB", digits=1),
        Column(title="Share, %", digits=1),
        Column(title="Module"),
        Column(title="Line", prose=True),
        Column(title="Allocations", digits=0, optional=True),
        Column(title="Age, ms", digits=2, optional=True, note="Age: of the oldest allocation of the row at the peak."),
    )
    # Only files with module annotations or Python frames show the module and the line.
    shown = [
        at
        for at, column in enumerate(columns)
        if column.title not in ("Module", "Line") or any(row[at] for row in rows)
    ]
    return Table(
        title=_TABLE,
        notes=(),
        columns=tuple(columns[at] for at in shown),
        rows=tuple(tuple(row[at] for at in shown) for row in rows),
    )


def _note(highest: RankMemory) -> str:
    """Which rank is shown, and how its bytes were obtained."""
    memory, peaks = highest.memory, highest.peaks
    sentences: list[str] = []
    if len(peaks) > 1:
        lowest = units.show_size(min(peaks.values()))
        sentences.append(f"Rank {highest.rank} has the highest peak of {len(peaks):,} ranks; the lowest is {lowest}.")
    sentences.append(
        "Categories follow from the phases in which memory is allocated and freed; what was allocated before the "
        "recording is unknown."
        if memory.holders
        else "The file has no addresses of allocations, so it does not show what held the peak."
    )
    if memory.missing_frees:
        frees = units.counted(memory.missing_frees, "free is", "frees are")
        sentences.append(f"{frees} missing from the file: such memory counts until its address is allocated again.")
    if memory.mismatches:
        sentences.append(
            f"{memory.mismatches:,} of {len(memory.ns) - 1:,} recorded totals differ from the sum of the allocations, "
            f"by up to {units.show_size(memory.mismatch_bytes)}."
        )
    return " ".join(sentences)
