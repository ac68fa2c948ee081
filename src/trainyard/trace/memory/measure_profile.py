"""Measures the memory of a rank from the allocations that a profiler recorded (`profile_memory=True`).

An event is an allocation or a free; moment m is after the first m events, as in `measure_snapshot.py`. An allocation is
attributed to the host spans around it: its phase and module, its operation and its line of Python. The category of an
allocation follows from its phase and its lifetime, by the rules of `categories.py`. Memory from before the recording is
known by its total only, and is `unknown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.events import I32, I64, OP, PYTHON, Events, HostSpans, MemoryEvents
from trainyard.recorded_stacks import MODULE_PREFIX
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.classify.passes import ENGINE_PREFIX
from trainyard.trace.memory.categories import (
    BACKWARD,
    FORWARD,
    KINDS,
    OPTIMIZER,
    OTHER,
    categorize_by_lifetime,
    source_location,
)
from trainyard.trace.memory.replay_allocations import bytes_at_moments
from trainyard.trace.memory.snapshot import Frame
from trainyard.trace.readers.nesting import innermost_spans, nearest_ancestor

BEFORE_RECORDING = "(before the recording)"
"""Stands for the operation of allocations that are older than the recording."""
_PHASES = {"forward": FORWARD, "backward": BACKWARD, "recompute": BACKWARD, "optimizer": OPTIMIZER}
_COMMUNICATION_PREFIXES = ("c10d::", "_c10d_functional::", "nccl:", "gloo:", "FSDP::all_gather", "FSDP::reduce_scatter")
_INPUT_PREFIX = "enumerate(DataLoader)"
_MAX_TOTAL_BYTES = 2**61
_LOW_QUANTILE = 0.01
"""Quantile of the differences between recorded and replayed totals that counts: missing frees make totals too high."""
_PYTHON_FRAME = "): "
_INSTANCE_NUMBER, _LAYER_NUMBER = re.compile(r"_\d+\Z"), re.compile(r"(?<=\.)\d+(?=\.|\Z)")


class PeakHolder(NamedTuple):
    """Allocations of one category from one operation, module and line that are alive at the peak. `size`: bytes;
    `count`: number of allocations; `age_ns`: of the oldest at the peak. These are 0 and -1 for what is older than the
    recording. `module`, `location`: empty if unknown."""

    category: str
    operation: str
    module: str
    location: str
    size: int
    count: int
    age_ns: int


class ProfiledMemory(NamedTuple):
    """Memory of one rank at n + 1 moments. `ns`: time of each on the trace's clock, the first that of the first event;
    `by_kind[k]`: allocated bytes of category KINDS[k]; `reserved`: bytes, empty if not recorded; `peak`: the first
    moment with the most allocated bytes; `holders`: what is alive then, the largest first, empty if the addresses are
    not recorded; `device`: its number, -1 for the host. `missing_frees`: allocations whose address is allocated again
    without a free in between; `mismatches`: events whose recorded total differs from the replayed one, by at most
    `mismatch_bytes`.
    """

    device: int
    ns: I64
    by_kind: NDArray[np.int64]
    reserved: I64
    peak: int
    holders: tuple[PeakHolder, ...]
    missing_frees: int
    mismatches: int
    mismatch_bytes: int

    @property
    def allocated(self) -> I64:
        """Bytes of all categories at each moment."""
        return self.by_kind.sum(axis=0)


class _Allocations(NamedTuple):
    """One row per allocation: bytes, the number of the event that made it (-1: before the recording) and of the one
    that freed it (the number of events: none)."""

    size: I64
    start: I64
    stop: I64


def measure_profiled_memory(rank: RankTrace) -> ProfiledMemory | None:
    """The memory of a rank; None if its file has no allocations, or sizes that sum to more than 64 bits hold."""
    memory = rank.events.memory
    if memory is None or not len(memory) or np.abs(memory.size).sum(dtype=float) >= _MAX_TOTAL_BYTES:
        return None
    count = len(memory)
    has_addresses = bool((memory.address >= 0).all())
    allocations = _match_frees(memory) if has_addresses else _Allocations(*np.empty((3, 0), np.int64))
    host_row = _innermost_rows(rank.events.host, memory)
    row = np.where(allocations.start >= 0, host_row[np.maximum(allocations.start, 0)], -1)  # of each allocation
    category = _categorize(rank, allocations, row, count)
    bytes_by_kind = np.zeros((len(KINDS), count + 1), np.int64)
    for kind in np.unique(category).tolist():
        own = category == kind
        bytes_by_kind[kind] = bytes_at_moments(
            allocations.size[own], allocations.start[own], allocations.stop[own], count
        )
    # What happens to memory from before the recording is unknown: its total is constant, but for what is freed.
    recorded = bytes_by_kind.sum(axis=0) if has_addresses else _sum_without_addresses(memory)
    total = np.concatenate([memory.total[:1] - memory.size[:1], memory.total])
    difference = (total - recorded)[np.concatenate([memory.total[:1] >= 0, memory.total >= 0]) & (total >= 0)]
    earlier = max(0, int(np.quantile(difference, _LOW_QUANTILE, method="lower"))) if len(difference) else 0
    bytes_by_kind[KINDS.index("unknown")] += earlier + recorded - bytes_by_kind.sum(axis=0)
    mismatch = np.abs(difference - earlier)
    peak = int(bytes_by_kind.sum(axis=0).argmax())
    ns = np.concatenate([memory.time[:1], memory.time])
    reserved = np.concatenate([memory.reserved[:1], memory.reserved])
    return ProfiledMemory(
        device=int(memory.device[0]),
        ns=ns,
        by_kind=bytes_by_kind,
        reserved=reserved if (memory.reserved > 0).all() else np.empty(0, np.int64),
        peak=peak,
        holders=_holders(rank, allocations, category, row, ns, peak, int(bytes_by_kind[:, peak].sum()))
        if has_addresses
        else (),
        missing_frees=_count_missing_frees(memory, allocations),
        mismatches=int((mismatch > 0).sum()),
        mismatch_bytes=int(mismatch.max(initial=0)),
    )


def _match_frees(memory: MemoryEvents) -> _Allocations:
    """Pairs each allocation with the next event at its address: its free, or an allocation that shows that the free is
    missing. A free without an allocation before it frees memory from before the recording."""
    count = len(memory)
    order = np.argsort(memory.address, kind="stable")
    address, size = memory.address[order], memory.size[order]
    continues = address[1:] == address[:-1]
    is_allocation = size > 0
    follows = np.append(continues, False)  # whether the next row is of the same address
    stop = np.where(follows, np.append(order[1:], count), count)
    freed_earlier = ~is_allocation & ~np.concatenate([[False], continues & is_allocation[:-1]])
    return _Allocations(
        size=np.concatenate([size[is_allocation], -size[freed_earlier]]),
        start=np.concatenate([order[is_allocation], np.full(int(freed_earlier.sum()), -1)]),
        stop=np.concatenate([stop[is_allocation], order[freed_earlier]]),
    )


def _sum_without_addresses(memory: MemoryEvents) -> I64:
    """Bytes at each moment: the sum of all events before it, plus as much as keeps it from being negative."""
    change = np.concatenate([[0], np.cumsum(memory.size)])
    return change - change.min()


def _count_missing_frees(memory: MemoryEvents, allocations: _Allocations) -> int:
    """Number of allocations whose next event at the same address is an allocation."""
    ends = allocations.stop[allocations.stop < len(memory)]
    return int((memory.size[ends] > 0).sum())


def _innermost_rows(host: HostSpans, memory: MemoryEvents) -> I32:
    """The host row of the innermost span around each event, -1 if there is none."""
    rows = np.full(len(memory), -1, np.int32)
    for thread in np.unique(memory.thread).tolist():
        own = memory.thread == thread
        rows[own] = innermost_spans(host, thread).at(memory.time[own])
    return rows


def _categorize(rank: RankTrace, allocations: _Allocations, row: I32, event_count: int) -> NDArray[np.int64]:
    """The category of each allocation, as an index into KINDS. `row`: its host row; -1, for none, selects the last
    value of each array below."""
    phases = list(words.PHASES)
    phase_of_context = np.append(rank.context.phase, -1)[row]
    phase = np.array([*(_PHASES.get(name, OTHER) for name in phases), OTHER])[phase_of_context]
    category = categorize_by_lifetime(allocations.start, allocations.stop, event_count, phase)
    is_recomputed = phase_of_context == phases.index("recompute")
    category[is_recomputed & (category != KINDS.index("temporary"))] = KINDS.index("activation")
    for kind, prefixes in (("communication", _COMMUNICATION_PREFIXES), ("input", (_INPUT_PREFIX,))):
        category[np.append(_is_inside(rank.events, prefixes), False)[row]] = KINDS.index(kind)
    return category


def _is_inside(events: Events, prefixes: tuple[str, ...]) -> NDArray[np.bool_]:
    """Whether each host span has a name with one of the prefixes, or is inside one that has."""
    is_name = np.array([name.startswith(prefixes) for name in events.names] or [False], bool)
    is_named = is_name[events.host.name] if len(events.host) else np.empty(0, bool)
    return is_named | (nearest_ancestor(is_named, events.host.parent) >= 0) if is_named.any() else is_named


def _holders(
    rank: RankTrace,
    allocations: _Allocations,
    category: NDArray[np.int64],
    row: I32,
    ns: I64,
    peak: int,
    allocated: int,
) -> tuple[PeakHolder, ...]:
    """The allocations that are alive at the moment `peak`, grouped, the largest first; they sum to `allocated`."""
    events = rank.events
    alive = np.flatnonzero((allocations.start < peak) & (allocations.stop >= peak) & (allocations.start >= 0))
    origin_of_row: dict[int, tuple[str, str, str]] = {}
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for index, kind, host_row in zip(alive.tolist(), category[alive].tolist(), row[alive].tolist()):
        if host_row not in origin_of_row:
            module = int(rank.context.module[host_row]) if host_row >= 0 else -1
            name = _module_of_all_layers(events.names[module]) if module >= 0 else ""
            chain = tuple(_chain(events, host_row))
            origin_of_row[host_row] = (_operation(events, chain), name, _location(events, chain))
        groups.setdefault((KINDS[kind], *origin_of_row[host_row]), []).append(index)
    holders = [
        PeakHolder(
            *key,
            size=int(allocations.size[rows].sum()),
            count=len(rows),
            age_ns=int(ns[peak] - ns[allocations.start[rows].min() + 1]),
        )
        for key, rows in groups.items()
    ]
    if earlier := allocated - sum(holder.size for holder in holders):
        holders.append(PeakHolder("unknown", BEFORE_RECORDING, "", "", earlier, 0, -1))
    return tuple(sorted(holders, key=lambda holder: (-holder.size, *holder[:4])))


def _module_of_all_layers(name: str) -> str:
    """The name of a module without the number of the instance or layer: `Linear_166` is `Linear`, and
    `layers.3.attention` is `layers.*.attention`."""
    return _LAYER_NUMBER.sub("*", _INSTANCE_NUMBER.sub("", name.removeprefix(MODULE_PREFIX)))


def _chain(events: Events, row: int) -> Iterator[int]:
    """A host row and its ancestors, the innermost first."""
    while row >= 0:
        yield row
        row = int(events.host.parent[row])


def _operation(events: Events, chain: Sequence[int]) -> str:
    """The outermost op of a chain of spans inside the autograd engine's own, else its innermost span."""
    names = [events.names[events.host.name[row]] for row in chain]
    ops = [
        name
        for row, name in zip(chain, names)
        if events.host.what[row] == OP and not name.startswith((ENGINE_PREFIX, MODULE_PREFIX))
    ]
    return ops[-1] if ops else names[0] if names else "(outside recorded spans)"


def _location(events: Events, chain: Sequence[int]) -> str:
    """The innermost line of Python outside torch; empty if the file has no Python frames."""
    frames = []
    for row in chain:
        file, is_frame, function = events.names[events.host.name[row]].rpartition(_PYTHON_FRAME)
        if events.host.what[row] == PYTHON and is_frame:
            path, _, line = file.rpartition("(")
            frames.append(Frame(path, int(line) if line.isdecimal() and len(line) < 10 else 0, function))
    return source_location(tuple(frames)) if frames else ""
