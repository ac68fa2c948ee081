"""Rows as a profiler's file has them -> `Events`: sorted, nested, launches linked to what they launched.

Every reader fills the same two tables, in the file's order, and leaves the rest to this file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.events import (
    CALL,
    DRAWN,
    I8,
    I32,
    I64,
    NOTE,
    OP,
    Collective,
    DeviceWork,
    Events,
    HostSpans,
    OperandShape,
    StepMark,
)
from trainyard.plugins import AS_WRITTEN
from trainyard.redact import redact
from trainyard.trace.readers.nesting import nest

_NO_COLLECTIVES: Mapping[int, Collective] = {}
_Table = TypeVar("_Table", "HostTable", "DeviceTable")


HOST_KINDS = (np.int64, np.int64, np.int32, np.int32, np.int8, np.int64, np.int64, np.int64, np.int8, np.int32)
DEVICE_KINDS = (np.int64, np.int64, np.int32, np.int32, np.int32, np.int8, np.int64, np.int64, np.int64, np.int8)
WAIT_KINDS = (np.int64, np.int32, np.int32, np.int32)
"""What the columns of the tables below are made of."""


class HostTable(NamedTuple):
    """m host spans. `name`, `thread` and `shape` are numbers, `correlation` and `external` -1 where there is none;
    `seq`, `backward` and `shape` as in `events.Host`."""

    start: I64
    stop: I64
    name: I32
    thread: I32
    what: I8
    correlation: I64
    external: I64
    seq: I64
    backward: I8
    shape: I32
    collectives: Mapping[int, Collective] = _NO_COLLECTIVES


class DeviceTable(NamedTuple):
    """n device intervals. `lane`: number of the stream's label within its device; `device`: its number, -1 unsaid."""

    start: I64
    stop: I64
    name: I32
    lane: I32
    device: I32
    what: I8
    correlation: I64
    external: I64
    bytes: I64
    occupancy: I8
    collectives: Mapping[int, Collective] = _NO_COLLECTIVES


class StreamWaits(NamedTuple):
    """k calls that made the stream `lane` of `device` wait for the stream `on`. `correlation`: of the call."""

    correlation: I64
    device: I32
    lane: I32
    on: I32

    def of(self, device: int) -> StreamWaits:
        """Those of the device, and those whose device is unsaid."""
        rows = (self.device == device) | (self.device < 0)
        return StreamWaits(self.correlation[rows], self.device[rows], self.lane[rows], self.on[rows])


class FileFacts(NamedTuple):
    """What a file says beside its rows. `rank` and `world` are -1 and 0 where unsaid, `lanes` the streams' labels,
    `makes` the name of each device by number."""

    source: str
    names: Sequence[str]
    lanes: Sequence[str]
    shapes: Sequence[OperandShape] = ()
    rank: int = -1
    world: int = 0
    makes: Mapping[int, str] = {}
    host_name: str = ""
    backend: str = ""
    group_sizes: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    cut_short: bool = False


def assemble(
    facts: FileFacts, host: HostTable, device: DeviceTable, waits: StreamWaits, mark: str = AS_WRITTEN.mark
) -> tuple[Events, ...]:
    """One `Events` for each device with work (one of the host's where there is none); where the file states its
    rank, one for all devices. Annotations whose name begins with `mark` are the steps' marks, and what follows
    it their label (else they are numbered). The tables' columns are sorted in place. Secrets are hidden.
    """
    facts = _redacted(facts)
    host, device = _sorted(host), _sorted(device)
    device, drawn = _work_alone(device)
    span = _span(host, device)
    spans, calls, ops = _host(host, facts.names)
    # Where spans overlap as they like, nesting shortens them; a step's mark stays as long as it is.
    marks, main = _marks(spans, host.stop, facts.names, mark)
    seen = [int(number) for number in np.unique(device.device) if number >= 0]
    # One rank may touch a second device in passing, and an event may not say its device.
    together = facts.rank >= 0 or len(seen) < 2
    made: list[Events] = []
    for number in seen[:1] or [-1] if together else seen:
        rows = np.arange(len(device.start)) if together else np.flatnonzero(device.device == number)
        own = waits if together else waits.of(number)
        work, streams = _work(device, rows, calls, ops, facts.lanes, own, spans, together and len(seen) > 1)
        events = _events(facts, spans, marks, main, span, work, streams, number, not together)
        over = _device_marks(drawn, -1 if together else number, facts.names, mark)
        made.append(msgspec.structs.replace(events, device_marks=over))
    return tuple(made)


def _redacted(facts: FileFacts) -> FileFacts:
    """A program chooses the names of its annotations and groups, and may put its arguments into them."""
    return facts._replace(
        source=redact(facts.source),
        names=tuple(map(redact, facts.names)),
        lanes=tuple(map(redact, facts.lanes)),
        makes={number: redact(name) for number, name in facts.makes.items()},
        host_name=redact(facts.host_name),
        backend=redact(facts.backend),
        notes=tuple(map(redact, facts.notes)),
    )


class _Numbered(NamedTuple):
    """Row of each number: `row[i]` for `number[i]`, numbers ascending."""

    number: I64
    row: I32

    def of(self, wanted: I64) -> I32:
        if not len(self.number):
            return np.full(len(wanted), -1, np.int32)
        place = np.minimum(np.searchsorted(self.number, wanted), len(self.number) - 1)
        return np.where(self.number[place] == wanted, self.row[place], -1).astype(np.int32)


def _sorted(table: _Table) -> _Table:
    """By start, the longest first."""
    order = np.lexsort((-table.stop, table.start))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    moved = {int(place[row]): found for row, found in table.collectives.items()}
    for column in table[:-1]:
        column[:] = column[order]  # in place: no second table stands beside the first
    return table._replace(collectives=moved)


def _span(host: HostTable, device: DeviceTable) -> tuple[int, int]:
    tables = [table for table in (host, device) if len(table.start)]
    return min(int(table.start[0]) for table in tables), max(int(table.stop.max()) for table in tables)


def _host(table: HostTable, names: Sequence[str]) -> tuple[HostSpans, _Numbered, _Numbered]:
    """The host table, correlation -> row of its call, External id -> row of its op."""
    parent, stops = nest(table.start, table.stop, table.thread)
    host = HostSpans(
        start=table.start,
        stop=stops,
        name=table.name,
        thread=table.thread,
        what=table.what,
        parent=parent,
        seq=table.seq,
        backward=table.backward,
        shape=table.shape,
        collectives=dict(table.collectives),
    )
    launches = np.array(["aunch" in name for name in names], bool)
    calls = np.flatnonzero((table.what == CALL) & (table.correlation >= 0))
    # Several driver calls may share one correlation; the last one that launches is the one meant, else the first.
    launching = launches[table.name[calls]] if len(calls) else np.empty(0, bool)
    order = np.lexsort((np.where(launching, calls, -1 - calls), table.correlation[calls]))
    ops = np.flatnonzero((table.what == OP) & (table.external >= 0))
    first = np.lexsort((-ops, table.external[ops]))
    return host, _last(table.correlation[calls], calls, order), _last(table.external[ops], ops, first)


def _last(numbers: I64, rows: NDArray[np.intp], order: NDArray[np.intp]) -> _Numbered:
    """Of rows ordered by number, the last one of each number."""
    numbers, rows = numbers[order], rows[order]
    keep = np.append(numbers[1:] != numbers[:-1], True)[: len(numbers)]
    return _Numbered(numbers[keep], rows[keep].astype(np.int32))


def _work(
    device: DeviceTable,
    rows: NDArray[np.intp],
    calls: _Numbered,
    ops: _Numbered,
    lanes: Sequence[str],
    waits: StreamWaits,
    host: HostSpans,
    several: bool,
) -> tuple[DeviceWork, tuple[str, ...]]:
    """The device table and its streams; with `several` devices, streams are told apart by device."""
    width = len(lanes) + 1
    own = device.device[rows].astype(np.int64) * width * several + device.lane[rows]
    known, first, stream = np.unique(own, return_index=True, return_inverse=True)
    labels = [
        f"device {number} {lanes[lane]}" if several else lanes[int(lane)]
        for number, lane in zip(device.device[rows[first]].tolist(), device.lane[rows[first]].tolist())
    ]
    correlation, external = device.correlation[rows], device.external[rows]
    call = calls.of(correlation)
    # Before 2023 a kernel's External id repeats its correlation and names no op.
    op = np.where(external != correlation, ops.of(external), -1).astype(np.int32)
    back = {int(row): place for place, row in enumerate(rows)} if device.collectives else {}
    work = DeviceWork(
        start=device.start[rows],
        stop=device.stop[rows],
        name=device.name[rows],
        stream=stream.astype(np.int32).reshape(-1),
        what=device.what[rows],
        call=call,
        op=op,
        bytes=device.bytes[rows],
        occupancy=device.occupancy[rows],
        awaits=_awaits(own, call, known, waits, calls, host, width * several),
        collectives={back[row]: found for row, found in device.collectives.items() if row in back},
    )
    return work, tuple(labels)


def _awaits(own: I64, call: I32, known: I64, waits: StreamWaits, calls: _Numbered, host: HostSpans, step: int) -> I32:
    """For each row, the stream its stream was told to wait for after the launch before and before its own."""
    awaits = np.full(len(own), -1, np.int32)
    asked_by = calls.of(waits.correlation)
    streams = waits.device.astype(np.int64) * step + waits.lane
    on = waits.device.astype(np.int64) * step + waits.on
    place_of = {int(value): place for place, value in enumerate(known)}
    for stream in np.unique(streams[asked_by >= 0]).tolist() if len(call) else ():
        asked = np.flatnonzero((streams == stream) & (asked_by >= 0))
        asked = asked[np.argsort(host.start[asked_by[asked]], kind="stable")]
        rows = np.flatnonzero((own == stream) & (call >= 0))
        rows = rows[np.argsort(host.start[call[rows]], kind="stable")]
        launched = host.start[call[rows]]
        latest = np.searchsorted(host.start[asked_by[asked]], launched, "right") - 1
        before = np.concatenate([[-1], np.searchsorted(host.start[asked_by[asked]], launched[:-1], "right") - 1])
        fresh = latest > before[: len(rows)]
        told = on[asked[latest[fresh]]]
        awaits[rows[fresh]] = [place_of.get(int(stream), -1) for stream in told]
    return awaits


def _marks(host: HostSpans, stops: I64, names: Sequence[str], prefix: str) -> tuple[tuple[StepMark, ...], int]:
    """The steps' marks, and the thread they are on; without marks, the thread with the most time in ops.

    Marks are of one thread, the one with most of them; a label stands once, and no mark inside another.
    """
    named = np.array([name.startswith(prefix) for name in names], bool)
    rows = np.flatnonzero(named[host.name] & (host.what == NOTE)).tolist() if len(host) else []
    if not rows:
        top = (host.what == OP) & (host.parent < 0)
        busy = np.bincount(host.thread, weights=(host.stop - host.start) * top) if len(host) else np.zeros(1)
        return (), int(busy.argmax())
    main = Counter(int(host.thread[row]) for row in rows).most_common(1)[0][0]
    marks: dict[str, StepMark] = {}
    for row in rows:
        start, stop = int(host.start[row]), int(stops[row])
        label = _label(names[int(host.name[row])], prefix, len(marks))
        inside = marks and start < next(reversed(marks.values())).stop
        if host.thread[row] == main and label not in marks and not inside:
            marks[label] = StepMark(label=label, start=start, stop=stop)
    return tuple(marks.values()), main


def _label(name: str, prefix: str, number: int) -> str:
    """What follows the prefix: `ProfilerStep#4` and `my step 4` are step 4."""
    return name[len(prefix) :].strip(" #:_-")[:32] or str(number)


def _device_marks(drawn: DeviceTable, device: int, names: Sequence[str], prefix: str) -> tuple[StepMark, ...]:
    """The steps as drawn over work of the device (-1: of any). A label stands once."""
    marks: dict[str, StepMark] = {}
    rows = np.flatnonzero((drawn.device == device) | (drawn.device < 0) | (device < 0))
    for name, start, stop in zip(*(column[rows].tolist() for column in (drawn.name, drawn.start, drawn.stop))):
        text = str(names[name])
        if text.startswith(prefix):
            label = _label(text, prefix, len(marks))
            marks.setdefault(label, StepMark(label=label, start=start, stop=stop))
    return tuple(marks.values())


def _work_alone(device: DeviceTable) -> tuple[DeviceTable, DeviceTable]:
    """The rows that are work, and the annotations drawn over it."""
    drawn = device.what == DRAWN
    if not drawn.any():
        return device, device._make([*(column[:0] for column in device[:-1]), {}])
    place = np.cumsum(~drawn) - 1
    moved = {int(place[row]): found for row, found in device.collectives.items()}
    parts = ([*(column[rows] for column in device[:-1]), kept] for rows, kept in ((~drawn, moved), (drawn, {})))
    return device._make(next(parts)), device._make(next(parts))


def _events(
    facts: FileFacts,
    host: HostSpans,
    marks: tuple[StepMark, ...],
    main: int,
    span: tuple[int, int],
    work: DeviceWork,
    streams: tuple[str, ...],
    index: int,
    many: bool,
) -> Events:
    # A container may renumber devices: where all are of one make, the number does not matter.
    makes = set(facts.makes.values())
    make = facts.makes[index] if index in facts.makes else makes.pop() if len(makes) == 1 else ""
    notes = facts.notes
    if many:
        notes = (*notes, "The file holds several devices; each is taken as a rank of its own.")
    met = [*host.collectives.values(), *work.collectives.values()]
    return Events(
        source=f"{facts.source}:{index}" if many else facts.source,
        names=tuple(facts.names),
        streams=streams,
        shapes=tuple(facts.shapes),
        work=work,
        host=host,
        marks=marks,
        span=span,
        main=main,
        rank=index if many else facts.rank,
        world=max([facts.world, *(collective.members for collective in met)]),
        device=make,
        device_index=index,
        devices=len(facts.makes),
        host_name=facts.host_name,
        backend=facts.backend,
        group_sizes=facts.group_sizes,
        notes=notes,
        cut_short=facts.cut_short,
    )
