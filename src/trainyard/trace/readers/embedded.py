"""The columns of a profile in a Perfetto file that trainyard writes, so that it can be analysed like the profile.

A packet holds them in a field that Perfetto does not know and skips: MessagePack of `Events`, in which a column is
(dtype, bytes of the differences between neighbours), which compress well. Decoding is by type and runs no code; columns
are checked before use, since the file may have been changed. `trainyard report` writes such files, and `pftrace.py`
reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadFile
from trainyard.events import DRAWN, PYTHON, Events, HostSpans, MemoryEvents
from trainyard.formats.protobuf import LENGTH, int_field, message_field, varint
from trainyard.redact import redact

FIELD = 19_000
"""Number of the packet's field; Perfetto's own are below 1,000."""
TAG = varint(FIELD << 3 | LENGTH)
_SEQUENCE_FIELD, _PACKET_FIELD = 10, 1
_DTYPES = {"<i8": np.int64, "<i4": np.int32, "|i1": np.int8}
_MAX_TIME_NS = 2**62


def encode_packet(events: Events, sequence: int) -> bytes:
    """An encoded packet with the columns of a rank. `sequence`: Perfetto's number of the writer whose packets
    these are."""
    columns = encode_profile(events)
    return message_field(_PACKET_FIELD, int_field(_SEQUENCE_FIELD, sequence), message_field(FIELD, columns))


def encode_profile(events: Events) -> bytes:
    """The columns of a rank as MessagePack, the inverse of `decode_profile`."""
    return msgspec.msgpack.encode(events, enc_hook=_encode_column)


def decode_profile(path: Path, profile: memoryview, notes: Sequence[str] = ()) -> Events:
    """The rank in the payload of a packet; its texts are redacted again. `profile`: the bytes of field `FIELD`;
    `notes`: messages for the user on what the file lacks, added to the rank's own; with them it counts as cut short.
    Raises `BadFile` if the columns are damaged."""
    try:
        events = msgspec.msgpack.decode(profile, type=Events, dec_hook=_decode_column)
        problem = _find_problem(events)
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError) as error:
        raise BadFile(f"{path}: the profile in the file cannot be read: {error}.", "Write it again.") from error
    if problem:
        raise BadFile(f"{path}: the profile in the file is damaged: {problem}.", "Write it again.")
    return msgspec.structs.replace(
        events,
        names=tuple(map(redact, events.names)),
        streams=tuple(map(redact, events.streams)),
        source=redact(events.source),
        notes=(*map(redact, events.notes), *notes),
        cut_short=events.cut_short or bool(notes),
    )


def _encode_column(column: object) -> object:
    """(dtype, bytes) of a column, as msgspec's `enc_hook`: the differences between neighbours, the first from 0, which
    wrap around."""
    if not isinstance(column, np.ndarray):
        raise TypeError(f"a profile holds no {type(column).__name__}")
    contiguous = np.ascontiguousarray(column)
    return contiguous.dtype.str, np.diff(contiguous, prepend=contiguous.dtype.type(0)).tobytes()


def _decode_column(kind: Any, part: Any) -> NDArray[Any]:
    """The inverse of `_encode_column`, as msgspec's `dec_hook`; sums wrap around as the differences did. `kind`: the
    expected type; `part`: the decoded (dtype, bytes). Raises `TypeError` or `ValueError` for anything else."""
    if get_origin(kind) is not np.ndarray:
        raise TypeError(f"a profile holds no {kind}")
    name, data = part
    dtype = _DTYPES.get(name)
    if dtype is None or not isinstance(data, bytes):
        raise ValueError(f"a column of type {str(name)[:20]}")
    return np.cumsum(np.frombuffer(data, dtype), dtype=dtype)


def _find_problem(events: Events) -> str:
    """The first problem with the columns, as a part of a sentence; empty if they can be used."""
    work, host = events.work, events.host
    names, streams, rows = len(events.names), len(events.streams), len(host)
    # (name of a column, the column, lowest value, value above the highest).
    checks: list[tuple[str, NDArray[Any], int, int]] = [
        ("work.name", work.name, 0, names), ("work.stream", work.stream, 0, streams),
        ("work.what", work.what, 0, DRAWN + 1), ("work.call", work.call, -1, rows), ("work.op", work.op, -1, rows),
        ("work.bytes", work.bytes, -1, 2**63 - 1), ("work.awaits", work.awaits, -1, streams),
        ("work.occupancy", work.occupancy, -1, 128),
        ("host.name", host.name, 0, names), ("host.thread", host.thread, 0, rows + 1),
        ("host.what", host.what, 0, PYTHON + 1), ("host.seq", host.seq, -1, 2**63 - 1),
        ("host.backward", host.backward, 0, 2), ("host.shape", host.shape, -1, len(events.shapes)),
    ]  # fmt: skip
    for table, kind, count in ((work, "work", len(work)), (host, "host", rows)):
        columns = {name: getattr(table, name) for name in table.__struct_fields__}
        lengths = {name: len(column) for name, column in columns.items() if isinstance(column, np.ndarray)}
        if wrong := next((name for name, length in lengths.items() if length != count), ""):
            return f"{kind}.{wrong} has {lengths[wrong]:,} rows, and {kind}.start {count:,}"
        start, stop = columns["start"], columns["stop"]
        if count and ((np.diff(start) < 0).any() or (stop < start).any()):
            return f"the rows of {kind} are not in order of start, or end before it"
        if count and (start.min() < -_MAX_TIME_NS or stop.max() > _MAX_TIME_NS):
            return f"{kind} has times beyond {_MAX_TIME_NS} ns"
        if any(not 0 <= row < count for row in columns["collectives"]):
            return f"{kind}.collectives names rows that do not exist"
    for name, column, low, high in checks:
        if len(column) and not (column.min() >= low and column.max() < high):
            return f"{name} has values outside {low} to {high - 1:,}"
    return (
        _find_nesting_problem(events.host)
        or _find_time_problem(events)
        or (_find_memory_problem(events.memory) if events.memory else "")
        or ("" if len(work) or rows else "it has no rows")
    )


def _find_nesting_problem(host: HostSpans) -> str:
    """The problem with the parents of host spans; empty if each precedes and encloses its children."""
    if not (host.parent >= -1).all() or (host.parent >= np.arange(len(host))).any():
        return "host.parent does not precede its children"
    child = np.flatnonzero(host.parent >= 0)
    parent = host.parent[child]
    if (host.stop[child] > host.stop[parent]).any() or (host.thread[child] != host.thread[parent]).any():
        return "host.parent does not enclose its children"
    return ""


def _find_memory_problem(memory: MemoryEvents) -> str:
    """The problem with the columns of allocations and frees; empty if they can be used."""
    columns = {name: getattr(memory, name) for name in memory.__struct_fields__}
    if any(len(column) != len(memory) for column in columns.values()):
        return "the columns of memory differ in length"
    if len(memory) and (memory.time[0] < -_MAX_TIME_NS or memory.time[-1] > _MAX_TIME_NS or (memory.thread < 0).any()):
        return f"memory has times beyond {_MAX_TIME_NS} ns, or threads below 0"
    return "memory is not in order of time" if (np.diff(memory.time) < 0).any() else ""


def _find_time_problem(events: Events) -> str:
    """The problem with the times of the recording and of its steps; empty if there is none."""
    spans = [events.span, *((mark.start, mark.stop) for mark in (*events.marks, *events.device_marks))]
    offset = events.clock_offset
    if offset and not (
        -_MAX_TIME_NS < offset.low_ns <= offset.high_ns < _MAX_TIME_NS
        and abs(offset.at_ns) < _MAX_TIME_NS
        and 0 <= offset.reference < 2**31
    ):
        return "the measured offset of its clock is impossible"
    if any(not -_MAX_TIME_NS < start <= stop < _MAX_TIME_NS for start, stop in spans):
        return f"a step or the recording ends before it starts, or has times beyond {_MAX_TIME_NS} ns"
    if any(first.start > second.start for first, second in pairwise(events.marks)):
        return "the steps are not in order"
    return ""
