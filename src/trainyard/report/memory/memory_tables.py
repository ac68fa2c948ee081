"""Tables of a memory snapshot: for each device the bytes held at the peak, by kind and by source location."""

from __future__ import annotations

from trainyard import units, words
from trainyard.report.memory.memory_view import describe_shortage
from trainyard.report.view.trace_results import MemorySnapshot
from trainyard.report.view.view import Column, Table
from trainyard.trace.memory.measure_snapshot import MemoryRecord

_MOST_HOLDERS = 30
"""Source locations in the table of a device."""


def title(snapshot: MemorySnapshot) -> str:
    """The peak of each device."""
    peaks = (f"device {record.device} {units.show_size(record.peak.allocated)}" for record in snapshot.devices)
    return f"Peak of allocated memory: {', '.join(peaks)}"


def tables(snapshot: MemorySnapshot) -> tuple[Table, ...]:
    """Two tables for each device, sizes in MiB; requests that failed are notes of the first."""
    return tuple(table for record in snapshot.devices for table in (_kinds(record), _holders(record)))


def _kinds(record: MemoryRecord) -> Table:
    """The table of the bytes at the peak by kind of memory (weights, gradients, ...), largest first, with their sum."""
    peak = record.peak
    bytes_by_kind = sorted(peak.held.items(), key=lambda item: -item[1])
    shortages = map(describe_shortage, record.shortages)
    return Table(
        title=f"Device {record.device}: held at the peak",
        notes=(f"{units.show_size(peak.reserved)} reserved at the peak.", *shortages, *record.notes),
        columns=(Column(title="kind"), Column(title="MiB", digits=1), Column(title="allocations", digits=0)),
        rows=(
            *((words.MEMORY[kind].label, size / 2**20, peak.counts.get(kind)) for kind, size in bytes_by_kind),
            ("allocated", peak.allocated / 2**20, sum(peak.counts.values())),
        ),
    )


def _holders(record: MemoryRecord) -> Table:
    """The table of the source locations whose allocations held the most bytes at the peak."""
    holders = record.peak.holders
    folded = len(holders) - _MOST_HOLDERS
    return Table(
        title=f"Device {record.device}: location",
        notes=(f"{units.counted(folded, 'more place')} left out.",) if folded > 0 else (),
        columns=(
            Column(title="location"), Column(title="kind"), Column(title="MiB", digits=1),
            Column(title="allocations", digits=0),
        ),
        rows=tuple(
            (holder.location or "(no stack)", words.MEMORY[holder.category].label, holder.size / 2**20, holder.count)
            for holder in holders[:_MOST_HOLDERS]
        ),
    )  # fmt: skip
