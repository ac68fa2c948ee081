"""Measures a memory snapshot: replay, then categories, then peak, fragmentation and shortages.

A snapshot has a trace (the allocator's events) and the blocks at its end. Moment m is after the first m events; an
allocation is a row of the replay's `lives`. `trainyard trace memory` prints the measurements.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadFile
from trainyard.plugins import AS_WRITTEN
from trainyard.trace.memory.allocator import AllocatorSettings
from trainyard.trace.memory.categories import KINDS, categorize, has_only_python_frames, source_location
from trainyard.trace.memory.fragments import Fragments, Shortage, find_shortages, measure_fragments
from trainyard.trace.memory.infer_earlier import infer_earlier_allocations
from trainyard.trace.memory.replay_allocations import Replay, bytes_at_moments, replay
from trainyard.trace.memory.snapshot import USER_DEFINED, Snapshot, SnapshotAnnotation, SnapshotDevice, load


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations of one category from one source location that are alive at the peak. `size` is the bytes of their
    blocks, `requested` the bytes requested. `age_ns` is the age of the oldest at the peak, -1 if it is older than the
    trace or the trace has no clock. `stack` is the full stack of the largest, innermost line first."""

    category: str
    location: str
    size: int
    requested: int
    count: int
    age_ns: int
    stack: tuple[str, ...] = ()


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The first moment with the most allocated bytes, after `moment` events; all sizes in bytes. `held` is bytes by
    category and sums to `allocated`, `counts` is their number of allocations by category; `holders` are sorted by size,
    largest first, and sum to it too. In a snapshot not written by an allocator, `fragments` is None and `reserved`
    equals `active`."""

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
    """Measurements of one device of a snapshot. `category[i]` is the index into KINDS of allocation i of
    `replay.lives`; `by_kind[k][m]` is the allocated bytes of category KINDS[k] at moment m, and `ns[m]` its time since
    the first event (a count of events if the file has no clock); `end`: fragmentation after the last event;
    `places[s]`: source location of stack s; `evidence`: sentences on inferred categories."""

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
    evidence: tuple[str, ...] = ()


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One device in the output of `--json`: the peak, the end and the failed requests; bytes and ns. `events`: length
    of the trace; `before`: number of allocations made before it; `reserved_peak`: bytes."""

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
    """Loads a snapshot of at most `limit` bytes unpacked (see `load`) and measures each device that holds memory or has
    a trace. Raises `BadFile`."""
    snapshot = load(path, limit)
    devices = tuple(_measure_device(snapshot, device) for device in snapshot.devices)
    if not devices:
        raise BadFile(
            f"{path}: the snapshot holds 0 segments and 0 events.", "Dump it while tensors are on the device."
        )
    return snapshot, devices


def _measure_device(snapshot: Snapshot, device: SnapshotDevice) -> MeasuredMemory:
    """Replays a device's trace, categorizes its allocations and measures peak, fragmentation and failed requests.
    Raises `BadFile` if the sizes in the file sum to more than 64 bits hold."""
    rules = AllocatorSettings.from_snapshot(snapshot.settings, from_allocator=snapshot.allocator)
    replayed = replay(device, rules, snapshot.source)
    lives, count = replayed.lives, len(device.trace.action)
    categories = categorize(lives, count, snapshot.stacks, snapshot.labels)
    # Replaces the category `unknown` of allocations from before the trace by an inferred one, with evidence.
    category, evidence = infer_earlier_allocations(lives, count, categories.category, categories.is_backward)
    bytes_by_kind: list[NDArray[np.int64]] = []
    for kind in range(len(KINDS)):
        rows = np.flatnonzero(category == kind)
        bytes_by_kind.append(bytes_at_moments(lives.size[rows], lives.start[rows], lives.stop[rows], count))
    places = tuple(source_location(stack) for stack in snapshot.stacks)
    ns = np.zeros(count + 1, np.int64)
    if count:
        ns[1:] = device.trace.ns - device.trace.ns[0]
    return MeasuredMemory(
        device=device,
        replay=replayed,
        category=category,
        by_kind=np.stack(bytes_by_kind),
        ns=ns,
        peak=_peak(snapshot, device, replayed, category, ns, places),
        end=measure_fragments(device, replayed, count) if snapshot.allocator else None,
        shortages=tuple(find_shortages(device, replayed, places)),
        marks=_marks(snapshot, device),
        places=places,
        evidence=evidence,
    )


def _marks(snapshot: Snapshot, device: SnapshotDevice) -> tuple[SnapshotAnnotation, ...]:
    """Annotations within the time of the trace, in ns since its first event: from the trace and from the separate list
    of the snapshot; none if the events have no timestamps."""
    trace = device.trace
    if not trace.timed:
        return ()
    in_trace = [
        SnapshotAnnotation(int(trace.ns[event]), device.index, snapshot.labels[trace.label[event]])
        for event in np.flatnonzero(trace.action == USER_DEFINED).tolist()
    ]
    first, last = int(trace.ns[0]), int(trace.ns[-1])
    external = (mark for mark in snapshot.marks if mark.device == device.index and first <= mark.ns <= last)
    return tuple(sorted(mark._replace(ns=mark.ns - first) for mark in (*in_trace, *external)))


def record(snapshot: Snapshot, memory: MeasuredMemory) -> MemoryRecord:
    """The record of one device for `--json`."""
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
    """Notes on the limits of the measurements of this file, for the user, each a sentence or more."""
    lives, texts = memory.replay.lives, list(memory.evidence)
    count = len(memory.device.trace.action)
    before = int((lives.start < 0).sum())
    if not count:
        texts.append(
            "The snapshot has no trace: it shows one moment. torch.cuda.memory._record_memory_history records a trace."
        )
    elif before:
        texts.append(
            f"{before:,} allocations were made before the trace began (it keeps the last max_entries events): their "
            "times are unknown, and so are the stacks of those that were freed."
        )
    if not snapshot.allocator:
        texts.append(
            "Made from a profile: it holds tensors and their categories, not an allocator's blocks, so nothing is "
            "reserved or rounded."
        )
    if count and not memory.device.trace.timed:
        texts.append("The events have no timestamps: the axis counts events.")
    if has_only_python_frames(snapshot.stacks):
        texts.append(
            "Stacks hold only Python frames: allocations without a stack are attributed to the autograd engine."
        )
    if memory.replay.checked_blocks and snapshot.allocator:
        texts.append(
            "The trace holds requested sizes; block sizes are computed by the allocator's rules. "
            f"{memory.replay.matching_blocks:,} of the {memory.replay.checked_blocks:,} blocks still there at the end "
            "match."
        )
    if memory.replay.inconsistencies:
        texts.append(
            f"{memory.replay.inconsistencies:,} allocations or frees are missing from the trace. Was it filtered?"
        )
    if snapshot.unreadable_count:
        texts.append(f"{snapshot.unreadable_count:,} entries could not be read and are left out.")
    return tuple(texts)


def _peak(
    snapshot: Snapshot,
    device: SnapshotDevice,
    replayed: Replay,
    category: NDArray[np.int8],
    ns: NDArray[np.int64],
    places: tuple[str, ...],
) -> Peak:
    """The peak of allocated bytes, and the allocations that are alive then, grouped by category and source location.
    `category[i]`, `ns[m]`, `places[s]`: as in MeasuredMemory."""
    moment = int(replayed.allocated.argmax())
    lives, alive = replayed.lives, np.flatnonzero(replayed.lives.is_allocated(moment))  # `alive`: rows of `lives`
    # (Index into KINDS, source location) -> rows of `lives`.
    groups: dict[tuple[int, str], list[int]] = {}
    for row, kind, stack in zip(alive.tolist(), category[alive].tolist(), lives.stack[alive].tolist()):
        groups.setdefault((kind, places[stack]), []).append(row)
    bytes_by_kind, counts = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    holders = []
    for (kind, location), rows in groups.items():
        size = int(lives.size[rows].sum())
        bytes_by_kind[KINDS[kind]] += size
        counts[KINDS[kind]] += len(rows)
        largest = rows[int(lives.size[rows].argmax())]
        oldest = int(lives.start[rows].min())
        holders.append(
            Holder(
                category=KINDS[kind],
                location=location,
                size=size,
                requested=int(lives.requested[rows].sum()),
                count=len(rows),
                # Event number `oldest` is the last one before moment `oldest` + 1.
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
        held={kind: size for kind, size in bytes_by_kind.items() if counts[kind]},
        counts={kind: count for kind, count in counts.items() if count},
        holders=tuple(sorted(holders, key=lambda holder: (-holder.size, holder.category, holder.location))),
        fragments=measure_fragments(device, replayed, moment) if snapshot.allocator else None,
    )
