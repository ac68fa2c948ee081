"""Builds the view of a memory snapshot: plain data of one device for the page and the terminal.

The caching allocator reserves segments from the driver and divides them into blocks; a holder is a source location that
allocated blocks. A moment is an index of the allocator's events. Names come from files: renderers must escape them. The
page stays small however many events a trace has: between any two moments that are drawn, the minimum and maximum of
allocated bytes and the maximum of reserved bytes are drawn too, so that no peak is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from trainyard import units, words
from trainyard.formats.atomic import write_text
from trainyard.report.render.html import document
from trainyard.report.view.memory_curve import MemoryCurve, MemoryKind, memory_kind, moments_kept
from trainyard.report.view.view import KeyFigure
from trainyard.trace.memory.categories import KINDS
from trainyard.trace.memory.fragments import Fragments, Shortage
from trainyard.trace.memory.measure_snapshot import Holder, MeasuredMemory, notes
from trainyard.trace.memory.ranges import ReservedRange, ranges_at
from trainyard.trace.memory.snapshot import Snapshot

_MOST_HOLDERS, _MOST_SEGMENTS, _MOST_PIECES, _MOST_MARKS, _MOST_FRAMES = 40, 40, 150, 200, 24
"""What a page holds at most: source locations, segments, pieces of a segment, annotations, frames of a stack."""
FREE, PENDING = -1, -2
"""Stand-ins for the category of a segment's piece: free, or freed but still in use by another stream."""


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A reserved address range. `pieces`: (kind index, FREE or PENDING; bytes) from its start on; they sum to
    `size`."""

    address: int
    size: int
    stream: int
    small: bool
    free: int
    largest: int
    pieces: list[tuple[int, int]]


class SegmentMap(msgspec.Struct, frozen=True, kw_only=True):
    """The largest segments at one moment. `left_out`: number of smaller ones, which hold `left_bytes` bytes."""

    label: str
    rows: list[SegmentRow]
    left_out: int
    left_bytes: int


class MemoryView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a memory report shows. `wall_ns`: length of the trace. `rest`: (number, bytes, blocks) of the holders
    that are not listed. `held`: label of a kind -> bytes at the peak. `fragments`: (moment in words, fragmentation
    then). `reasons`: reason of a failed request -> its meaning. `marks`: (ns, text) of annotations."""

    title: str
    subtitle: str
    chips: tuple[str, ...]
    figures: tuple[KeyFigure, ...]
    wall_ns: int
    kinds: tuple[MemoryKind, ...]
    curve: MemoryCurve
    holders: tuple[Holder, ...]
    rest: tuple[int, int, int]
    held: dict[str, int]
    fragments: tuple[tuple[str, Fragments], ...]
    segments: tuple[SegmentMap, ...]
    shortages: tuple[Shortage, ...]
    reasons: dict[str, str]
    marks: tuple[tuple[int, str], ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    limits: tuple[str, ...]
    generated: str = ""


def busiest(memories: Sequence[MeasuredMemory]) -> MeasuredMemory:
    """The device with the highest peak, which the page draws."""
    return max(memories, key=lambda memory: (memory.peak.allocated, memory.peak.reserved))


def view_of(
    snapshot: Snapshot, memory: MeasuredMemory, others: Sequence[MeasuredMemory] = (), generated: str = ""
) -> MemoryView:
    """The view of one device; the notes list the peaks of `others`. `generated`: the program and its version, for the
    foot of the page."""
    used_kinds = [kind for kind in range(len(KINDS)) if memory.by_kind[kind].any()]
    shown = memory.peak.holders[:_MOST_HOLDERS]
    left = memory.peak.holders[_MOST_HOLDERS:]
    count = len(memory.device.trace.action)
    moments = [("at the peak", memory.peak.moment), ("at the end", count)] if count else [("in the snapshot", 0)]
    lines = list(notes(snapshot, memory))
    for other in others:
        if other is not memory:
            lines.append(f"Device {other.device.index}: peak {units.show_size(other.peak.allocated)} allocated.")
    if len(memory.marks) > _MOST_MARKS:
        lines.append(f"{len(memory.marks):,} annotations; the first {_MOST_MARKS} are drawn.")
    return MemoryView(
        title=title_of(memory),
        subtitle=f"Device {memory.device.index}, {count:,} allocator events",
        chips=(Path(snapshot.source).name,),
        figures=_figures(memory),
        wall_ns=int(memory.ns[-1]),
        kinds=tuple(memory_kind(KINDS[kind]) for kind in used_kinds),
        curve=_curve(memory, used_kinds),
        holders=tuple(msgspec.structs.replace(holder, stack=holder.stack[:_MOST_FRAMES]) for holder in shown),
        rest=(len(left), sum(holder.size for holder in left), sum(holder.count for holder in left)),
        held={memory_kind(kind).label: size for kind, size in memory.peak.held.items()},
        fragments=tuple(
            (label, fragments)
            for (label, _), fragments in zip(moments, (memory.peak.fragments, memory.end))
            if fragments is not None
        ),
        segments=tuple(segment_map(memory, label, at, used_kinds) for label, at in moments)
        if snapshot.allocator
        else (),
        shortages=memory.shortages,
        reasons={reason: f"{word.label}: {word.means}" for reason, word in words.SHORTAGES.items()},
        marks=tuple((mark.ns, mark.text) for mark in memory.marks[:_MOST_MARKS]),
        warnings=tuple(dict.fromkeys(_REMEDIES[shortage.reason] for shortage in memory.shortages)),
        notes=tuple(lines),
        limits=_LIMITS,
        generated=generated,
    )


_JOIN_SEGMENTS = (
    "Free pieces cannot merge across segments, and a segment in use cannot be returned to the driver. "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True allows both."
)
_REMEDIES = {
    "elsewhere": "Memory cached for one stream or pool is not available to another: allocate on one stream, or call "
    "torch.cuda.empty_cache() when the other is done.",
    "fragmented": _JOIN_SEGMENTS,
    "divided": _JOIN_SEGMENTS,
    "full": "Reduce memory use: recompute activations, shard or offload states, or cut the micro-batch.",
}
"""Why an allocation failed, as in words.SHORTAGES -> its remedy."""

_LIMITS = (
    "The category of a block is inferred from its stack and its lifetime, unless the file records it.",
    "A block freed in the trace but allocated before it is counted at the rounded size of its request.",
    "The pool that a failed request could have used is inferred from stream and size; private pools of CUDA graphs are "
    "not distinguished.",
    "Snapshots do not contain memory that other libraries and processes hold on the device.",
)


def page(view: MemoryView) -> str:
    """The self-contained HTML document. Its content security policy is in report/render/html.py."""
    plain: dict[str, Any] = msgspec.to_builtins(view)
    plain["categories"] = {kind: word.label for kind, word in words.MEMORY.items()}
    return document(view.title, plain, "memory")


def write(view: MemoryView, path: Path) -> None:
    """Writes the page atomically. Raises `PlaceUnwritable`."""
    write_text(page(view), path)


def title_of(memory: MeasuredMemory) -> str:
    """The sentence that names the peak and its largest category and holder, or the last failed request."""
    if memory.shortages:
        return describe_shortage(memory.shortages[-1])
    peak = memory.peak
    if not peak.allocated:
        return "Nothing was allocated."
    largest_kind = max(peak.held, key=lambda kind: peak.held[kind])
    share = units.show_share(peak.held[largest_kind], peak.allocated, 0)
    sentence = (
        f"Peak {units.show_size(peak.allocated)} allocated, {share} of it {memory_kind(largest_kind).label.lower()}"
    )
    largest = peak.holders[0]
    if largest.location:
        sentence += f"; the largest holder is {largest.location} with {units.show_size(largest.size)}"
    return sentence


def describe_shortage(shortage: Shortage) -> str:
    """Why an allocation failed, with the sizes."""
    requested, unused = units.show_size(shortage.requested), units.show_size(shortage.unused)
    sentence = f"Out of memory at event {shortage.event:,}: {requested} requested"
    free = units.show_size(shortage.device_free)
    if shortage.reason == "elsewhere":
        return (
            f"{sentence}; a cached free block was large enough, but belonged to another stream or pool "
            f"({unused} cached and free)"
        )
    if shortage.reason == "fragmented":
        largest = units.show_size(shortage.largest)
        return (
            f"{sentence}; {units.show_size(shortage.usable)} were cached and free for it, the largest piece {largest}"
        )
    if shortage.reason == "divided":
        return f"{sentence}; {unused} were cached and free and {free} free on the device, together enough"
    return f"{sentence}; {unused} cached and free and {free} free on the device were less"


def _figures(memory: MeasuredMemory) -> tuple[KeyFigure, ...]:
    """Key figures of the peak in bytes: allocated and, if the segments are known, reserved, unused and rounding."""
    peak, fragments = memory.peak, memory.peak.fragments
    figures = [_size_figure("peak allocated", peak.allocated, "Bytes in allocated blocks at the peak.")]
    if fragments is not None:
        share = units.show_share(fragments.unused, fragments.reserved)
        figures += [
            _size_figure(
                "peak reserved", int(memory.replay.reserved.max()), "Maximum of the bytes obtained from the driver."
            ),
            _size_figure(f"unused at the peak, {share}", fragments.unused, "Reserved and cached, but not in use."),
            _size_figure("largest free piece", fragments.largest, "At the peak."),
            _size_figure("lost to rounding", fragments.rounding, "At the peak: size of blocks minus requested bytes."),
        ]
    return tuple(figures)


def _size_figure(label: str, size: int, description: str) -> KeyFigure:
    """A key figure of `size` bytes; `description`: its definition."""
    value, _, unit = units.show_size(size).partition(" ")
    return KeyFigure(label=label, value=value, unit=unit, description=description)


def _curve(memory: MeasuredMemory, used_kinds: Sequence[int]) -> MemoryCurve:
    """Active and reserved bytes over time, in total and for each of the kinds `used_kinds`, thinned out for drawing."""
    keep = moments_kept(memory.ns, memory.replay.allocated, memory.replay.reserved)
    return MemoryCurve(
        ns=memory.ns[keep].tolist(),
        active=memory.replay.active[keep].tolist(),
        reserved=memory.replay.reserved[keep].tolist(),
        kinds=[memory.by_kind[kind][keep].tolist() for kind in used_kinds],
        peak=int(np.searchsorted(keep, memory.peak.moment)),
        timed=memory.device.trace.timed,
        moments=len(memory.ns),
    )


def segment_map(memory: MeasuredMemory, label: str, moment: int, used_kinds: Sequence[int]) -> SegmentMap:
    """The layout of the largest segments at `moment`, an index of allocator events. `label`: the moment in words. Kinds
    are numbered by their position in `used_kinds`, which are indices into `KINDS`."""
    ranges = sorted(ranges_at(memory.device, moment), key=lambda segment: (segment.start - segment.end, segment.start))
    shown = sorted(ranges[:_MOST_SEGMENTS])
    lives = memory.replay.lives
    active = np.flatnonzero(lives.is_active(moment))  # rows of `lives`, the blocks; then sorted by address
    active = active[np.argsort(lives.address[active])]
    addresses = lives.address[active]
    index_of_kind = {kind: number for number, kind in enumerate(used_kinds)}
    rows = []
    for segment in shown:
        first, last = np.searchsorted(addresses, (segment.start, segment.end)).tolist()
        blocks = [
            (int(lives.address[row]), int(lives.size[row]), _kind_index_of(memory, row, moment, index_of_kind))
            for row in active[first:last].tolist()
        ]
        rows.append(_segment_row(segment, blocks))
    smaller_segments = ranges[_MOST_SEGMENTS:]
    return SegmentMap(
        label=label,
        rows=rows,
        left_out=len(smaller_segments),
        left_bytes=sum(segment.end - segment.start for segment in smaller_segments),
    )


def _kind_index_of(memory: MeasuredMemory, row: int, moment: int, index_of_kind: dict[int, int]) -> int:
    """`PENDING` if the block of `row` was freed before `moment` and waits for its stream; else the index of its
    kind."""
    pending = int(memory.replay.lives.stop[row]) < moment
    return PENDING if pending else index_of_kind[int(memory.category[row])]


def _segment_row(segment: ReservedRange, blocks: list[tuple[int, int, int]]) -> SegmentRow:
    """A segment as pieces in order of address. `blocks`: (address, size in bytes, kind index) of its blocks; the rest
    is `FREE`."""
    pieces: list[tuple[int, int]] = []
    cursor = segment.start
    for address, size, kind_index in [*blocks, (segment.end, 0, FREE)]:
        if address > cursor:
            pieces.append((FREE, address - cursor))
        end = min(address + size, segment.end)
        if end > max(address, cursor):
            pieces.append((kind_index, end - max(address, cursor)))
        cursor = max(cursor, end)
    free = [size for kind_index, size in pieces if kind_index == FREE]
    return SegmentRow(
        address=segment.start,
        size=segment.end - segment.start,
        stream=segment.stream,
        small=segment.small,
        free=sum(free),
        largest=max(free, default=0),
        pieces=_merge_pieces(pieces, segment.end - segment.start),
    )


def _merge_pieces(pieces: list[tuple[int, int]], segment_bytes: int) -> list[tuple[int, int]]:
    """The pieces, (kind index, bytes), with neighbours of one kind merged. If there are too many, pieces too thin to be
    visible in a segment of `segment_bytes` are merged into the one before."""
    thin_bytes = segment_bytes // _MOST_PIECES if len(pieces) > _MOST_PIECES else 0
    merged: list[tuple[int, int]] = []
    for kind_index, length in pieces:
        if merged and (merged[-1][0] == kind_index or length < thin_bytes or merged[-1][1] < thin_bytes):
            kept_kind = merged[-1][0] if merged[-1][1] >= length else kind_index
            merged[-1] = (kept_kind, merged[-1][1] + length)
        else:
            merged.append((kind_index, length))
    return merged
