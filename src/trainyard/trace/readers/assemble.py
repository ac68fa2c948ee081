"""Builds `Events` from the rows of a profiler's file: sorts and nests them and links launches to device work.

Every reader fills the same tables (`tables.py`), in the file's order; `assemble` does the rest. A lane is a device
stream; a mark is an annotation that delimits a training step; calls are driver calls, which share a correlation id with
the device work that they launch; ops share an External id with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.events import (
    CALL,
    DRAWN,
    I32,
    I64,
    NOTE,
    OP,
    DeviceWork,
    Events,
    HostSpans,
    StepMark,
)
from trainyard.plugins import AS_WRITTEN
from trainyard.redact import redact
from trainyard.trace.readers.device_shares import DeviceShare, number_devices_as_ranks, share_out_devices
from trainyard.trace.readers.irregularities import describe_irregularities, drop_duplicates
from trainyard.trace.readers.nesting import nest
from trainyard.trace.readers.tables import DeviceTable, FileFacts, HostTable, StreamWaits

_Table = TypeVar("_Table", HostTable, DeviceTable)


def assemble(
    facts: FileFacts,
    host: HostTable,
    device: DeviceTable,
    waits: StreamWaits,
    mark: str = AS_WRITTEN.mark,
    is_whole_process: bool = False,
) -> tuple[Events, ...]:
    """Returns one `Events` per device with work (one of the host's spans if there is none). Annotations whose names
    begin with `mark` mark steps; the rest of the name is the step's label (steps without one are numbered).
    `is_whole_process`: whether the tables hold all calls and all work of a process, so that a missing kernel or an
    overlap on a stream is noted. Sorts the tables' columns in place, drops duplicates, notes irregular events and
    redacts secrets.
    """
    facts = _redact_facts(facts)
    host, host_repeats = drop_duplicates(_sort_by_start(host))
    device, device_repeats = drop_duplicates(_sort_by_start(device))
    device, annotations = _split_off_annotations(device)
    span = _recording_span(host, device)
    spans, calls, ops = _build_host_spans(host, facts.names)
    launch = calls.rows(device.correlation)
    repeats = (host_repeats, device_repeats)
    irregular = describe_irregularities(host, device, launch, facts.names, repeats, is_whole_process)
    facts = facts._replace(notes=(*facts.notes, *irregular))
    # Nesting shortens spans that overlap without being nested; a step's mark keeps its length.
    marks, main = _find_step_marks(spans, host.stop, facts.names, mark)
    by_device: list[Events] = []
    for share in share_out_devices(facts, device, bool((launch >= 0).any())):
        device_waits = waits if share.is_whole else waits.on_device(share.device)
        work, streams = _build_device_work(
            device, share.rows, calls, ops, facts.lanes, device_waits, spans, share.has_several_devices
        )
        events = _build_events(facts, spans, marks, mark, main, span, work, streams, share)
        device_marks = _find_device_marks(annotations, -1 if share.is_whole else share.device, facts.names, mark)
        by_device.append(msgspec.structs.replace(events, device_marks=device_marks))
    return tuple(by_device)


def _redact_facts(facts: FileFacts) -> FileFacts:
    """Redacts every text: programs choose the names of annotations and groups, and may put arguments into them."""
    return facts._replace(
        source=redact(facts.source),
        names=tuple(map(redact, facts.names)),
        lanes=tuple(map(redact, facts.lanes)),
        device_names={device: redact(name) for device, name in facts.device_names.items()},
        host_name=redact(facts.host_name),
        backend=redact(facts.backend),
        notes=tuple(map(redact, facts.notes)),
    )


class _RowIndex(NamedTuple):
    """Rows of the host table by correlation or External id: row `row[i]` has the id `ident[i]`; ids ascend and are
    distinct."""

    ident: I64
    row: I32

    def rows(self, idents: I64) -> I32:
        """The host row of each id, -1 if it has none."""
        if not len(self.ident):
            return np.full(len(idents), -1, np.int32)
        index = np.minimum(np.searchsorted(self.ident, idents), len(self.ident) - 1)
        return np.where(self.ident[index] == idents, self.row[index], -1).astype(np.int32)


def _sort_by_start(table: _Table) -> _Table:
    """Sorts the table's columns in place by start, ties longest first; returns it with the collectives' new rows."""
    order = np.lexsort((-table.stop, table.start))
    new_row = np.empty(len(order), np.int64)
    new_row[order] = np.arange(len(order))
    collectives = {int(new_row[row]): collective for row, collective in table.collectives.items()}
    for column in table[:-1]:
        column[:] = column[order]  # in place: a second table would double the memory
    return table._replace(collectives=collectives)


def _recording_span(host: HostTable, device: DeviceTable) -> tuple[int, int]:
    """(earliest start, latest stop) ns of all rows. Both tables are sorted by start, and one of them has rows."""
    tables = [table for table in (host, device) if len(table.start)]
    return min(int(table.start[0]) for table in tables), max(int(table.stop.max()) for table in tables)


def _build_host_spans(table: HostTable, names: Sequence[str]) -> tuple[HostSpans, _RowIndex, _RowIndex]:
    """Nests the spans of a sorted table. Returns the host spans, the index of the calls by correlation id, and that of
    the ops by External id. `names`: text of each number in `table.name`."""
    parent, stops = nest(table.start, table.stop, table.thread)
    host = HostSpans(
        start=table.start,
        stop=stops,
        name=table.name,
        thread=table.thread,
        what=table.kind,
        parent=parent,
        seq=table.seq,
        backward=table.backward,
        shape=table.shape,
        collectives=dict(table.collectives),
    )
    is_launch_name = np.array(["aunch" in name for name in names], bool)  # cudaLaunchKernel, hipModuleLaunchKernel, ...
    calls = np.flatnonzero((table.kind == CALL) & (table.correlation >= 0))
    # Several driver calls may share a correlation id: it belongs to the last one that launches, else to the first.
    is_launch = is_launch_name[table.name[calls]] if len(calls) else np.empty(0, bool)
    # Within an id, ascending: other calls from the last (-1 - row) to the first, then launches from the first.
    call_order = np.lexsort((np.where(is_launch, calls, -1 - calls), table.correlation[calls]))
    ops = np.flatnonzero((table.kind == OP) & (table.external >= 0))
    # The first op of an id is taken: descending, as `_index_last` keeps the last.
    op_order = np.lexsort((-ops, table.external[ops]))
    calls_by_id = _index_last(table.correlation[calls], calls, call_order)
    return host, calls_by_id, _index_last(table.external[ops], ops, op_order)


def _index_last(idents: I64, rows: NDArray[np.intp], order: NDArray[np.intp]) -> _RowIndex:
    """Indexes the last row of each id. `idents`: id of each of the host `rows`; `order`: positions in both, which sort
    them by id."""
    idents, rows = idents[order], rows[order]
    is_last = np.append(idents[1:] != idents[:-1], True)[: len(idents)]
    return _RowIndex(idents[is_last], rows[is_last].astype(np.int32))


def _build_device_work(
    device: DeviceTable,
    rows: NDArray[np.intp],
    calls: _RowIndex,
    ops: _RowIndex,
    lanes: Sequence[str],
    waits: StreamWaits,
    host: HostSpans,
    has_several_devices: bool,
) -> tuple[DeviceWork, tuple[str, ...]]:
    """Builds the device work from `rows` of the device table, and the labels of its streams, in the order of their
    numbers. `calls`, `ops`: host rows by id; `lanes`: label of each lane; `host`: the nested spans;
    `has_several_devices`: whether the rows are of several devices, each with streams of its own."""
    # A stream is a (device, lane) pair, coded as device * lane_count + lane, or as the lane alone.
    lane_count = len(lanes) + 1
    stream_ids = device.device[rows].astype(np.int64) * lane_count * has_several_devices + device.lane[rows]
    distinct, first, stream = np.unique(stream_ids, return_index=True, return_inverse=True)
    labels = [
        f"device {device_number} {lanes[lane]}" if has_several_devices else lanes[int(lane)]
        for device_number, lane in zip(device.device[rows[first]].tolist(), device.lane[rows[first]].tolist())
    ]
    correlation, external = device.correlation[rows], device.external[rows]
    call = calls.rows(correlation)
    # Before 2023 a kernel's External id repeats its correlation id and does not refer to an op.
    op = np.where(external != correlation, ops.rows(external), -1).astype(np.int32)
    new_row = {int(row): index for index, row in enumerate(rows)} if device.collectives else {}
    work = DeviceWork(
        start=device.start[rows],
        stop=device.stop[rows],
        name=device.name[rows],
        stream=stream.astype(np.int32).reshape(-1),
        what=device.kind[rows],
        call=call,
        op=op,
        bytes=device.bytes[rows],
        occupancy=device.occupancy[rows],
        awaits=_find_awaited_streams(stream_ids, call, distinct, waits, calls, host, lane_count * has_several_devices),
        collectives={new_row[row]: value for row, value in device.collectives.items() if row in new_row},
    )
    return work, tuple(labels)


def _find_awaited_streams(
    stream_ids: I64,
    call: I32,
    distinct: I64,
    waits: StreamWaits,
    calls: _RowIndex,
    host: HostSpans,
    ids_per_device: int,
) -> I32:
    """For each row of device work, the stream (position in `distinct`) for which its stream was made to wait between
    the previous launch on it and the row's own; -1 if there is no such wait.

    `stream_ids`: id of each row's stream; `call`: host row that launched it, -1 if unknown; `distinct`: the stream ids
    in ascending order; `waits`: the calls that made a stream wait; `calls`: host rows by correlation id; `host`: the
    spans; `ids_per_device`: a stream's id is its device's number times this, plus its lane.
    """
    awaits = np.full(len(stream_ids), -1, np.int32)
    wait_call = calls.rows(waits.correlation)
    waiting = waits.device.astype(np.int64) * ids_per_device + waits.lane
    awaited = waits.device.astype(np.int64) * ids_per_device + waits.awaited_lane
    stream_index = {int(ident): index for index, ident in enumerate(distinct)}
    for ident in np.unique(waiting[wait_call >= 0]).tolist() if len(call) else ():
        wait_rows = np.flatnonzero((waiting == ident) & (wait_call >= 0))
        wait_rows = wait_rows[np.argsort(host.start[wait_call[wait_rows]], kind="stable")]
        rows = np.flatnonzero((stream_ids == ident) & (call >= 0))
        rows = rows[np.argsort(host.start[call[rows]], kind="stable")]
        launch_ns, wait_ns = host.start[call[rows]], host.start[wait_call[wait_rows]]
        # Position in wait_rows of the latest wait before each launch, and before the launch that precedes it.
        latest = np.searchsorted(wait_ns, launch_ns, "right") - 1
        previous = np.concatenate([[-1], np.searchsorted(wait_ns, launch_ns[:-1], "right") - 1])
        is_new = latest > previous[: len(rows)]
        targets = awaited[wait_rows[latest[is_new]]]
        awaits[rows[is_new]] = [stream_index.get(int(target), -1) for target in targets]
    return awaits


def _find_step_marks(
    host: HostSpans, stops: I64, names: Sequence[str], prefix: str
) -> tuple[tuple[StepMark, ...], int]:
    """Returns the steps' marks and the number of the main thread: the one with the most marks, whose marks alone are
    kept, or, without marks, the one with the most time in ops.

    `stops`: stop of each host span before nesting shortened it; `prefix`: of the names of marks. Marks inside another
    mark are dropped.
    """
    rows = np.flatnonzero(_is_mark(names, prefix)[host.name] & (host.what == NOTE)) if len(host) else []
    if not len(rows):
        is_top_op = (host.what == OP) & (host.parent < 0)
        op_ns_by_thread = (
            np.bincount(host.thread, weights=(host.stop - host.start) * is_top_op) if len(host) else np.zeros(1)
        )
        return (), int(op_ns_by_thread.argmax())
    main = Counter(host.thread[rows].tolist()).most_common(1)[0][0]
    rows = rows[host.thread[rows] == main]
    return _number_marks(names, host.name[rows], host.start[rows], stops[rows], prefix, may_overlap=False), main


def _is_mark(names: Sequence[str], prefix: str) -> NDArray[np.bool_]:
    """Whether each name is that of a step's annotation: exactly `prefix` if a name is, else beginning with it."""
    is_exact = np.array([name == prefix for name in names], bool)
    return is_exact if is_exact.any() else np.array([name.startswith(prefix) for name in names], bool)


def _number_marks(
    names: Sequence[str], name: I32, start: I64, stop: I64, prefix: str, may_overlap: bool
) -> tuple[StepMark, ...]:
    """Makes marks of annotations, which are sorted by start: `name` (position in `names`), `start` and `stop` (ns) of
    each. The label is the rest of the name after the prefix. A repeated label
    with a number is dropped, as the annotation was recorded twice; if another text is repeated, or there is none, the
    marks are numbered. `may_overlap`: keep marks that begin before the end of the last one."""
    texts = [_step_label(str(names[int(number)]), prefix) for number in name]
    counts = Counter(texts)
    is_numbered = any(count > 1 and not any(map(str.isdigit, text)) for text, count in counts.items()) or "" in counts
    marks: dict[str, StepMark] = {}
    last_stop = None
    for text, begin, end in zip(texts, start.tolist(), stop.tolist()):
        label = str(len(marks)) if is_numbered else text
        if label not in marks and (may_overlap or last_stop is None or begin >= last_stop):
            marks[label], last_stop = StepMark(label=label, start=begin, stop=end), end
    return tuple(marks.values())


def _step_label(name: str, prefix: str) -> str:
    """The label after the prefix: `ProfilerStep#4` and `my step 4` are step 4."""
    return name[len(prefix) :].strip(" #:_-")[:32]


def _find_device_marks(
    annotations: DeviceTable, device: int, names: Sequence[str], prefix: str
) -> tuple[StepMark, ...]:
    """The step marks that the file draws over the work of the device (-1: of any device), one for each label.
    `annotations`: the rows of the kind `DRAWN`; `prefix`: of the names of marks."""
    rows = np.flatnonzero((annotations.device == device) | (annotations.device < 0) | (device < 0))
    rows = rows[_is_mark(names, prefix)[annotations.name[rows]]] if len(rows) else rows
    start, stop = annotations.start[rows], annotations.stop[rows]
    return _number_marks(names, annotations.name[rows], start, stop, prefix, may_overlap=True)


def _split_off_annotations(device: DeviceTable) -> tuple[DeviceTable, DeviceTable]:
    """Splits the device table into two: the rows of device work, and those of annotations drawn over it."""
    is_annotation = device.kind == DRAWN
    if not is_annotation.any():
        return device, device._make([*(column[:0] for column in device[:-1]), {}])
    new_row = np.cumsum(~is_annotation) - 1
    collectives = {int(new_row[row]): value for row, value in device.collectives.items()}
    parts = (
        [*(column[rows] for column in device[:-1]), values]
        for rows, values in ((~is_annotation, collectives), (is_annotation, {}))
    )
    return device._make(next(parts)), device._make(next(parts))


def _build_events(
    facts: FileFacts,
    host: HostSpans,
    marks: tuple[StepMark, ...],
    mark: str,
    main: int,
    span: tuple[int, int],
    work: DeviceWork,
    streams: tuple[str, ...],
    share: DeviceShare,
) -> Events:
    """Builds the events of one `share` of the file's device work. `work`, `streams`: its rows and the labels of their
    streams; `host`, `marks`, `span`: spans, steps and (start, stop) of the whole file; `mark`: prefix of the names of
    step annotations; `main`: number of the main thread."""
    # A container may renumber devices: if all have the same name, the number does not matter.
    distinct = set(facts.device_names.values())
    device_name = facts.device_names.get(share.device, distinct.pop() if len(distinct) == 1 else "")
    if facts.rank >= 0 and share.world > facts.world > 1:
        host, work = number_devices_as_ranks(host, share), number_devices_as_ranks(work, share)
    collectives = [*host.collectives.values(), *work.collectives.values()]
    return Events(
        source=facts.source if share.is_whole else f"{facts.source}:{share.device}",
        names=tuple(facts.names),
        streams=streams,
        shapes=tuple(facts.shapes),
        work=work,
        host=host,
        marks=marks,
        mark=mark,
        span=span,
        main=main,
        rank=share.rank,
        world=max([share.world, *(collective.members for collective in collectives)]),
        device=device_name,
        device_index=share.device,
        devices=len(facts.device_names),
        host_name=facts.host_name,
        backend=facts.backend,
        group_sizes=facts.group_sizes,
        notes=(*facts.notes, *share.notes),
        cut_short=facts.cut_short,
    )
