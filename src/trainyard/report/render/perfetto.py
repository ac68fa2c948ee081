"""Export of all ranks to one Perfetto trace for ui.perfetto.dev, with the ledger as tracks.

Schema: https://perfetto.dev/docs/reference/trace-packet-proto. Each rank is a process on the ranks' common clock, with
these tracks: its steps, the verdict (the account of each instant: the slices tile the window and add up to the ledger),
waits for late ranks, its busy fraction, and its streams as profiled. Perfetto skips the profile's columns, which come
with each rank: from them trainyard reads the file back. The file is gzipped and written rank by rank.

Perfetto's terms: a sequence of packets has interned strings, which are written once and then named by an id; a track
descriptor declares a track, which events name by its uuid. A slice is an interval on a track.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from trainyard.events import I64
from trainyard.formats.atomic import replacing
from trainyard.formats.protobuf import double_field, int_field, message_field, padded_varints, text_field, varint
from trainyard.report.view.rank_lanes import lane_numbers, shown_name
from trainyard.report.view.step_bounds import step_label
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.booking.owners import find_owners
from trainyard.trace.classify.context import PHASES
from trainyard.trace.export.trace_tables import op_names, rank_numbers, start_ns_of_intervals
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.readers import embedded

# Numbers of fields, named after their message and field in the schema.
_TRACE_PACKET = 1
_PACKET_TIMESTAMP, _PACKET_SEQUENCE, _PACKET_EVENT, _PACKET_INTERNED, _PACKET_FLAGS, _PACKET_TRACK = (
    8,
    10,
    11,
    12,
    13,
    60,
)
_EVENT_ANNOTATION, _EVENT_TYPE, _EVENT_NAME_ID, _EVENT_TRACK, _EVENT_COUNTER_VALUE = 4, 9, 10, 11, 44
_TRACK_UUID, _TRACK_NAME, _TRACK_PROCESS, _TRACK_PARENT, _TRACK_COUNTER, _TRACK_ORDERING, _TRACK_RANK = (
    1,
    2,
    3,
    5,
    8,
    11,
    12,
)
_COUNTER_UNIT, _PROCESS_PID, _PROCESS_NAME = 6, 1, 6
_ANNOTATION_NAME_ID, _ANNOTATION_INT, _ANNOTATION_TEXT_ID = 1, 4, 17
_INTERNED_EVENT_NAMES, _INTERNED_KEYS, _INTERNED_TEXTS = 2, 3, 29
_ENTRY_ID, _ENTRY_TEXT = 1, 2
# Values of enumerations: TrackEvent.Type, TracePacket.SequenceFlags, TrackDescriptor.ChildTracksOrdering.
_SLICE_BEGIN, _SLICE_END, _COUNTER_SAMPLE = 1, 2, 4
_STATE_CLEARED, _STATE_NEEDED = 1, 2
_EXPLICIT_ORDER = 3
_BUSY_INTERVALS = 1000
"""Intervals of the counter track."""
_MOST_LANES = 128
"""Tracks of one name, for slices that overlap."""
_CHUNK_BYTES = 1 << 20
"""Bytes written at once."""
_TRACK_IDS_PER_RANK = 1 << 32

Facts = tuple[tuple[str, "int | str"], ...]


class Slices(NamedTuple):
    """n slices of a track. `describe(kind)` gives the name and the arguments of the slices of a kind; it is called once
    for each. `owned`: ns of each slice that its account owns, -1 if unknown."""

    start: I64
    stop: I64
    kind: I64
    describe: Callable[[int], tuple[str, Facts]]
    owned: I64 | None = None


def write(measured: MeasuredTrace, path: Path, host: bool = False) -> None:
    """Writes the trace. `host`: includes the spans of host threads. Ranks without a common clock are shifted to start
    with the first one, and labelled as such. Raises `PlaceUnwritable`."""
    numbers = rank_numbers(measured)
    window_starts = [rank.parts[0].start for rank in measured.ranks]
    unaligned = measured.alignment.aligned == "no" and len(window_starts) > 1
    clock_moves = [window_starts[0] - begins if unaligned else 0 for begins in window_starts]
    # Timestamps of the format are unsigned.
    least_stamp = min(0, *(_first(rank, host) + move for rank, move in zip(measured.ranks, clock_moves)))
    # mtime=0: equal traces give equal files.
    with replacing(path) as partial, partial.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as out:
        for index, (rank, move) in enumerate(zip(measured.ranks, clock_moves)):
            _Writer(out, index, move - least_stamp).write_rank(rank, numbers, moved=move != 0, host=host)


def _first(rank: RankTrace, host: bool) -> int:
    """The earliest timestamp in ns that is written for a rank. `host`: with its host threads."""
    columns = (start_ns_of_intervals(rank), rank.waits.start, *([rank.events.host.start] if host else []))
    return min([rank.parts[0].start, *(int(column.min()) for column in columns if len(column))])


class _Writer:
    """Writes one rank as one sequence of packets. `shift`: ns to add to timestamps. `root`: id of the rank's process
    track, below which `tracks` were declared. `sequence`, `tail`: encoded fields of a packet. `numbers`: (field of the
    table, text) -> interning id; `fresh`: encoded strings that are not written yet; `chunk`: packets to be written."""

    def __init__(self, out: gzip.GzipFile | BinaryIO, index: int, shift: int) -> None:
        """Starts the packets of the rank at `index`; `shift` is added to all of its times, in ns."""
        self.out = out
        self.shift = shift
        self.index = index
        self.root = (index + 1) * _TRACK_IDS_PER_RANK
        self.tracks = 0
        self.sequence = int_field(_PACKET_SEQUENCE, index + 1)
        self.tail = self.sequence + int_field(_PACKET_FLAGS, _STATE_NEEDED)
        self.numbers: dict[tuple[int, str], int] = {}
        self.fresh: list[bytes] = []
        self.chunk = bytearray()

    def write_rank(self, rank: RankTrace, numbers: Sequence[int], moved: bool, host: bool) -> None:
        """Writes all tracks of a rank: steps, verdict, waits, busy time, streams and, if `host`, threads. `moved`: its
        clock is not aligned with that of the first rank. `numbers`: the number of each rank of the trace."""
        self.out.write(embedded.encode_packet(rank.events, self.index + 1))
        process = f"rank {rank.events.rank}" + (" (clock not aligned: moved to start with the first)" if moved else "")
        self.packet(self.sequence, int_field(_PACKET_FLAGS, _STATE_CLEARED), message_field(
            _PACKET_TRACK, int_field(_TRACK_UUID, self.root), int_field(_TRACK_ORDERING, _EXPLICIT_ORDER),
            message_field(_TRACK_PROCESS, int_field(_PROCESS_PID, self.index + 1), text_field(_PROCESS_NAME, process)),
        ))  # fmt: skip
        self.write_slices("steps", _steps(rank))
        self.write_slices("verdict", _owner_slices(rank, numbers))
        if len(rank.waits.start):
            self.write_slices("waits for late ranks", _waits(rank, numbers))
        self.write_busy(rank)
        for label, slices in _streams(rank):
            self.write_slices(label, slices)
        for label, slices in _threads(rank) if host else ():
            self.write_slices(label, slices)
        self.flush()

    def write_slices(self, label: str, slices: Slices) -> None:
        """Writes slices to as many tracks of the name `label` as it takes for the slices of each to nest or be
        disjoint, up to `_MOST_LANES`. The begins and ends of a track are written in order of time; a lane keeps its
        open slices."""
        order = np.lexsort((-slices.stop, slices.start))
        columns = (slices.start[order], slices.stop[order])
        begins, ends = (padded_varints(column + self.shift) for column in columns)
        owned = np.full(len(order), -1) if slices.owned is None else slices.owned[order]
        owned_key = int_field(_ANNOTATION_NAME_ID, self.interned(_INTERNED_KEYS, "owned_ns"))
        bodies: dict[int, bytes] = {}  # kind of slice -> its encoded name and arguments
        lanes: list[_Lane] = []
        left_out = 0
        numbers = (column.tolist() for column in (*columns, slices.kind[order], owned))
        for start, stop, kind, ns, begin, end in zip(*numbers, begins, ends):
            for lane in lanes:
                while lane.open and lane.open[-1][0] <= start:
                    self.write_event(lane.open.pop()[1], lane.end)
            lane = next((candidate for candidate in lanes if not candidate.open or candidate.open[-1][0] >= stop), None)
            if lane is None:
                if len(lanes) == _MOST_LANES:
                    left_out += 1
                    continue
                lane = _Lane(self.track(label))
                lanes.append(lane)
            body = bodies.get(kind)
            if body is None:
                body = bodies[kind] = self.encode_body(*slices.describe(kind))
            facts = (
                body if ns < 0 else body + message_field(_EVENT_ANNOTATION, owned_key, int_field(_ANNOTATION_INT, ns))
            )
            self.write_event(begin, message_field(_PACKET_EVENT, lane.begin, facts))
            lane.open.append((stop, end))
        for lane in lanes:
            while lane.open:
                self.write_event(lane.open.pop()[1], lane.end)
        if left_out:
            self.track(f"{label}: {left_out:,} slices that overlap with {_MOST_LANES} others were left out")

    def write_busy(self, rank: RankTrace) -> None:
        """Writes the percentage of time at work in each of `_BUSY_INTERVALS` equal intervals of the window as a counter
        track."""
        track = self.track("busy", message_field(_TRACK_COUNTER, text_field(_COUNTER_UNIT, "%")))
        edges, ns = busy_ns(rank)
        percents = 100 * ns / np.maximum(1, np.diff(edges))
        # A sample holds until the next; the last one ends the curve.
        for stamp, percent in zip(padded_varints(edges + self.shift), [*percents.tolist(), 0.0]):
            self.write_event(
                stamp,
                message_field(
                    _PACKET_EVENT,
                    int_field(_EVENT_TYPE, _COUNTER_SAMPLE),
                    int_field(_EVENT_TRACK, track),
                    double_field(_EVENT_COUNTER_VALUE, percent),
                ),
            )

    def track(self, label: str, *more: bytes) -> int:
        """Declares a track below the rank's process and returns its id. `more`: further encoded fields of the track's
        descriptor."""
        self.tracks += 1
        uuid = self.root + self.tracks
        parts = (
            int_field(_TRACK_UUID, uuid),
            text_field(_TRACK_NAME, label),
            int_field(_TRACK_PARENT, self.root),
            int_field(_TRACK_RANK, self.tracks),
        )
        self.packet(self.sequence, message_field(_PACKET_TRACK, *parts, *more))
        return uuid

    def encode_body(self, name: str, facts: Facts) -> bytes:
        """The encoded name and arguments (`facts`: pairs of key and value) of a slice, with interned strings."""
        parts = [int_field(_EVENT_NAME_ID, self.interned(_INTERNED_EVENT_NAMES, name))]
        for key, value in facts:
            encoded = (
                int_field(_ANNOTATION_INT, value)
                if isinstance(value, int)
                else int_field(_ANNOTATION_TEXT_ID, self.interned(_INTERNED_TEXTS, value))
            )
            parts.append(
                message_field(
                    _EVENT_ANNOTATION, int_field(_ANNOTATION_NAME_ID, self.interned(_INTERNED_KEYS, key)), encoded
                )
            )
        return b"".join(parts)

    def interned(self, table: int, text: str) -> int:
        """The interning id of a string in a `table` of the interned data; a new one is written before the packet that
        uses it."""
        number = self.numbers.get((table, text))
        if number is None:
            number = self.numbers[table, text] = len(self.numbers) + 1
            self.fresh.append(message_field(table, int_field(_ENTRY_ID, number), text_field(_ENTRY_TEXT, text)))
        return number

    def write_event(self, stamp: bytes, event: bytes) -> None:
        """Writes an encoded event at an encoded time, after the strings that it is the first to use."""
        if self.fresh:
            self.packet(self.tail, message_field(_PACKET_INTERNED, *self.fresh))
            self.fresh.clear()
        self.packet(_TIMESTAMP_TAG, stamp, self.tail, event)

    def packet(self, *parts: bytes) -> None:
        """Writes a packet of encoded fields; to the file once a chunk is full."""
        self.chunk += message_field(_TRACE_PACKET, *parts)
        if len(self.chunk) >= _CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the packets that are pending to the file."""
        self.out.write(self.chunk)
        self.chunk.clear()


_TIMESTAMP_TAG = varint(_PACKET_TIMESTAMP << 3)


class _Lane:
    """A track with its open slices: (stop, encoded timestamp), the innermost last."""

    def __init__(self, track: int) -> None:
        self.begin = int_field(_EVENT_TYPE, _SLICE_BEGIN) + int_field(_EVENT_TRACK, track)
        self.end = message_field(_PACKET_EVENT, int_field(_EVENT_TYPE, _SLICE_END), int_field(_EVENT_TRACK, track))
        self.open: list[tuple[int, bytes]] = []


def busy_ns(rank: RankTrace) -> tuple[I64, I64]:
    """(edges, ns of work between consecutive edges) of `_BUSY_INTERVALS` equal intervals of the window. Work is time
    owned by compute, communication, copies, or waits for a late rank."""
    opening, closing = rank.parts[0].start, rank.parts[-1].stop
    edges = np.array(
        [opening + edge * (closing - opening) // _BUSY_INTERVALS for edge in range(_BUSY_INTERVALS + 1)], np.int64
    )
    owned = find_owners(rank)
    is_work = np.array([*(account.kind in _WORKS for account, _ in rank.keys.pairs), False])[owned.key]
    begin, end = owned.start[is_work], owned.stop[is_work]
    work_before = np.concatenate([[0], np.cumsum(end - begin)])
    # For each edge: work of the intervals before the last one that began, plus the part of that one up to the edge.
    following = np.searchsorted(begin, edges, "right")  # index of the first interval that begins after the edge
    inside = np.minimum(edges, np.append(opening, end)[following]) - np.append(opening, begin)[following]
    work_until = work_before[np.maximum(following - 1, 0)] + np.where(following > 0, inside, 0)
    return edges, np.diff(work_until)


_WORKS = ("compute", "straggler", "comm", "copy")
"""Kinds of accounts that count as work."""


def _steps(rank: RankTrace) -> Slices:
    """The slices of the track of steps: each part of the window, with the ns of each account as arguments."""

    def describe(index: int) -> tuple[str, Facts]:
        part, ledger = rank.parts[index], rank.ledgers[index]
        return step_label(part.label) + (" (partial)" if part.partial else ""), tuple(
            (f"{account} ns", ns) for account, ns in ledger.by_account().items() if ns
        )

    bounds = np.array([[part.start, part.stop] for part in rank.parts], np.int64)
    return Slices(start=bounds[:, 0], stop=bounds[:, 1], kind=np.arange(len(bounds)), describe=describe)


def _owner_slices(rank: RankTrace, numbers: Sequence[int]) -> Slices:
    """Slices of the account that owns each moment of a rank's steps. `numbers`: the late rank's number by its index in
    `owned.late`."""
    owned = find_owners(rank)
    # A slice's kind packs the index of its account in `rank.keys.pairs` and that of the late rank, each + 1, since -1
    # means none.
    late = owned.late.astype(np.int64) + 1

    def describe(kind: int) -> tuple[str, Facts]:
        key, late = divmod(kind, len(numbers) + 1)
        return _account(rank, key - 1, numbers[late - 1] if late else None)

    kind = (owned.key.astype(np.int64) + 1) * (len(numbers) + 1) + late
    return Slices(start=owned.start, stop=owned.stop, kind=kind, describe=describe)


def _waits(rank: RankTrace, numbers: Sequence[int]) -> Slices:
    """Slices of a rank's waits for late ranks. `numbers`: the late rank's number by its index in `waits.late`."""
    waits = rank.waits

    def describe(kind: int) -> tuple[str, Facts]:
        key, late = divmod(kind, len(numbers))
        return _account(rank, key, numbers[late])

    kind = waits.key.astype(np.int64) * len(numbers) + waits.late
    return Slices(start=waits.start, stop=waits.stop, kind=kind, describe=describe, owned=rank.waited)


def _account(rank: RankTrace, key: int, late: int | None) -> tuple[str, Facts]:
    """Name and facts of a slice from its key (-1: unexplained) and the number of the rank waited for, if any."""
    if key < 0:
        return "unexplained", ()
    account, phase = rank.keys.pairs[key]
    waits = () if late is None else (("late rank", late),)
    return str(account), (("account", account.label), ("phase", PHASES[phase]), *waits)


def _streams(rank: RankTrace) -> Iterator[tuple[str, Slices]]:
    """(label, slices) of each device stream with work, each slice with account, phase, module and operator."""
    classified, events = rank.classified, rank.events
    lane_of, labels = lane_numbers(rank)
    start, names = start_ns_of_intervals(rank), list(events.names)
    # A slice's kind is its distinct combination of (name, key, module, op): column `kind` of `kinds`.
    kinds, kind = np.unique(
        np.stack([classified.name, classified.key, classified.module, op_names(rank)]), axis=1, return_inverse=True
    )
    kind = kind.reshape(-1)

    def describe(index: int) -> tuple[str, Facts]:
        """Name and facts, (title, value) pairs, of the slices of a kind: column `index` of `kinds`, which has the
        number of their name, key (index into `rank.keys.pairs`), module and op; -1 for no module or op."""
        name, key, module, op = kinds[:, index].tolist()
        account, phase = rank.keys.pairs[key]
        launched = (("op", names[op]),) if op >= 0 else ()
        inside = (("module", names[module]),) if module >= 0 else ()
        return shown_name(rank, names, name, key), (
            ("account", str(account)), ("phase", PHASES[phase]), *inside, *launched,
        )  # fmt: skip

    for lane, label in enumerate(labels):
        rows = np.flatnonzero(lane_of == lane)
        if len(rows):
            yield label, Slices(
                start=start[rows], stop=classified.stop[rows], kind=kind[rows], describe=describe,
                owned=rank.owned[rows],
            )  # fmt: skip


def _threads(rank: RankTrace) -> Iterator[tuple[str, Slices]]:
    """(label, slices) of each host thread; its slices have a name alone."""
    host, names = rank.events.host, rank.events.names
    for thread in np.unique(host.thread).tolist():
        rows = np.flatnonzero(host.thread == thread)
        label = f"host thread {thread}" + (" (training)" if thread == rank.events.main else "")
        yield label, Slices(
            start=host.start[rows], stop=host.stop[rows], kind=host.name[rows].astype(np.int64),
            describe=lambda name: (names[name], ()),
        )  # fmt: skip
