"""A snapshot measured: the whole chain in order, replay -> categories -> peak, fragmentation, shortages."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadFile
from trainyard.plugins import AS_WRITTEN
from trainyard.trace.memory.allocator import AllocatorSettings
from trainyard.trace.memory.categories import KINDS, categories, python_alone, where
from trainyard.trace.memory.fragments import Fragments, Shortage, fragments, shortages
from trainyard.trace.memory.replay_allocations import Replay, replay, totals
from trainyard.trace.memory.snapshot import USER_DEFINED, Snapshot, SnapshotAnnotation, SnapshotDevice, load


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations of one category from one place in the code, alive at the peak. `size` counts blocks, `requested` what
    was asked for, bytes. `age_ns` is the oldest's age at the peak, -1 where it is older than the trace or has no clock.
    `stack` is the whole stack of the largest, innermost line first."""

    category: str
    where: str
    size: int
    requested: int
    count: int
    age_ns: int
    stack: tuple[str, ...] = ()


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The moment of most allocated bytes, the first of equals; `moment` events had happened. `held` is by category,
    and sums to `allocated`; `holders` are largest first and sum to it too. `fragments` is None, and `reserved` is
    `active`, in a snapshot that no allocator wrote."""

    moment: int
    ns: int
    allocated: int
    requested: int
    active: int
    reserved: int
    held: dict[str, int]
    counts: dict[str, int]
    holders: tuple[Holder, ...]
    fragments: Fragments | None


class MeasuredMemory(NamedTuple):
    """One device of a snapshot. `by_kind[k][m]` is KINDS[k]'s allocated bytes at moment m, and `ns[m]` its time since
    the first event (event counts where the file has no clock)."""

    device: SnapshotDevice
    replay: Replay
    category: NDArray[np.int8]
    by_kind: NDArray[np.int64]
    ns: NDArray[np.int64]
    peak: Peak
    end: Fragments | None
    shortages: tuple[Shortage, ...]
    marks: tuple[SnapshotAnnotation, ...]
    places: tuple[str, ...]


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints of a device: the peak, the end, and what failed; bytes and ns."""

    source: str
    device: int
    events: int
    timed: bool
    before: int
    reserved_peak: int
    peak: Peak
    end: Fragments | None
    shortages: tuple[Shortage, ...]
    notes: tuple[str, ...]


def measure(path: Path, limit: int = AS_WRITTEN.limit) -> tuple[Snapshot, tuple[MeasuredMemory, ...]]:
    """A snapshot file of at most `limit` bytes unpacked (see `load`), and each device in it that holds memory or has a
    trace. Raises `BadFile`."""
    snapshot = load(path, limit)
    found = tuple(measured(snapshot, device) for device in snapshot.devices)
    if not found:
        raise BadFile(
            f"{path}: the snapshot holds 0 segments and 0 events.", "Dump it while tensors are on the device."
        )
    return snapshot, found


def measured(snapshot: Snapshot, device: SnapshotDevice) -> MeasuredMemory:
    rules = AllocatorSettings.of(snapshot.settings, snapshot.allocator)
    replayed = replay(device, rules, snapshot.source)
    lives, count = replayed.lives, len(device.trace.action)
    category = categories(lives, count, snapshot.stacks, snapshot.labels)
    by_kind = np.stack(
        [
            totals(lives.size[category == kind], lives.start[category == kind], lives.stop[category == kind], count)
            for kind in range(len(KINDS))
        ]
    )
    places = tuple(where(stack) for stack in snapshot.stacks)
    ns = np.zeros(count + 1, np.int64)
    if count:
        ns[1:] = device.trace.ns - device.trace.ns[0]
    return MeasuredMemory(
        device,
        replayed,
        category,
        by_kind,
        ns,
        _peak(snapshot, device, replayed, category, ns, places),
        fragments(device, replayed, count) if snapshot.allocator else None,
        tuple(shortages(device, replayed, places)),
        _marks(snapshot, device),
        places,
    )


def _marks(snapshot: Snapshot, device: SnapshotDevice) -> tuple[SnapshotAnnotation, ...]:
    """Annotations within the trace, by the allocator's clock: from beside it and from in it."""
    trace = device.trace
    if not trace.timed:
        return ()
    inside = [
        SnapshotAnnotation(int(trace.ns[event]), device.index, snapshot.labels[trace.label[event]])
        for event in np.flatnonzero(trace.action == USER_DEFINED).tolist()
    ]
    first, last = int(trace.ns[0]), int(trace.ns[-1])
    beside = (mark for mark in snapshot.marks if mark.device == device.index and first <= mark.ns <= last)
    return tuple(sorted(mark._replace(ns=mark.ns - first) for mark in (*inside, *beside)))


def record(snapshot: Snapshot, memory: MeasuredMemory) -> MemoryRecord:
    return MemoryRecord(
        source=snapshot.source,
        device=memory.device.index,
        events=len(memory.device.trace.action),
        timed=memory.device.trace.timed,
        before=int((memory.replay.lives.start < 0).sum()),
        reserved_peak=int(memory.replay.reserved.max()),
        peak=memory.peak,
        end=memory.end,
        shortages=memory.shortages,
        notes=notes(snapshot, memory),
    )


def notes(snapshot: Snapshot, memory: MeasuredMemory) -> tuple[str, ...]:
    """What a reader of the numbers must know about this file."""
    lives, told = memory.replay.lives, []
    count = len(memory.device.trace.action)
    before = int((lives.start < 0).sum())
    if not count:
        told.append(
            "The snapshot has no trace: it shows one moment. torch.cuda.memory._record_memory_history keeps one."
        )
    elif before:
        told.append(
            f"{before:,} allocations were made before the trace began (it keeps the last max_entries events): the file "
            "does not say when, nor by what unless they are still there."
        )
    if not snapshot.allocator:
        told.append(
            "Made from a profile: tensors and their categories, no allocator, so nothing is reserved or rounded."
        )
    if count and not memory.device.trace.timed:
        told.append("The events carry no clock: the axis counts events.")
    if python_alone(snapshot.stacks):
        told.append("Stacks hold Python's frames alone: allocations without any are taken for the autograd engine's.")
    if memory.replay.checked and snapshot.allocator:
        told.append(
            f"The trace tells what was asked for; block sizes follow from the allocator's rules, and of the "
            f"{memory.replay.checked:,} blocks still there at the end {memory.replay.agreed:,} have the size so found."
        )
    if memory.replay.lost:
        told.append(f"{memory.replay.lost:,} allocations or frees are missing from the trace: was it recorded in part?")
    if snapshot.odd:
        told.append(f"{snapshot.odd:,} entries could not be read and are left out.")
    return tuple(told)


def _peak(
    snapshot: Snapshot,
    device: SnapshotDevice,
    replayed: Replay,
    category: NDArray[np.int8],
    ns: NDArray[np.int64],
    places: tuple[str, ...],
) -> Peak:
    moment = int(replayed.allocated.argmax())
    lives, alive = replayed.lives, np.flatnonzero(replayed.lives.at(moment))
    groups: dict[tuple[int, str], list[int]] = {}
    for row, kind, stack in zip(alive.tolist(), category[alive].tolist(), lives.stack[alive].tolist()):
        groups.setdefault((kind, places[stack]), []).append(row)
    held, counts = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    holders = []
    for (kind, place), rows in groups.items():
        size = int(lives.size[rows].sum())
        held[KINDS[kind]] += size
        counts[KINDS[kind]] += len(rows)
        largest = rows[int(lives.size[rows].argmax())]
        oldest = int(lives.start[rows].min())
        holders.append(
            Holder(
                category=KINDS[kind],
                where=place,
                size=size,
                requested=int(lives.requested[rows].sum()),
                count=len(rows),
                age_ns=int(ns[moment] - ns[oldest + 1]) if oldest >= 0 and device.trace.timed else -1,
                stack=tuple(f"{f.file}:{f.line} {f.name}" for f in snapshot.stacks[lives.stack[largest]]),
            )
        )
    return Peak(
        moment=moment,
        ns=int(ns[moment]),
        allocated=int(replayed.allocated[moment]),
        requested=int(replayed.requested[moment]),
        active=int(replayed.active[moment]),
        reserved=int(replayed.reserved[moment]),
        held={kind: size for kind, size in held.items() if counts[kind]},
        counts={kind: count for kind, count in counts.items() if count},
        holders=tuple(sorted(holders, key=lambda holder: (-holder.size, holder.category, holder.where))),
        fragments=fragments(device, replayed, moment) if snapshot.allocator else None,
    )
