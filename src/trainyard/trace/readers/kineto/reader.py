"""Reads Kineto JSON (torch.profiler's chrome trace), plain or gzipped, CUDA, ROCm or CPU only.

Formats supported: 2021 (`Kernel`, `Memcpy`, integer µs, thread ids as text) to torch 2.13 (`kernel`, `gpu_memcpy`, µs
with three decimals over `baseTimeNanoseconds`). Timestamps are parsed from raw text to integers: a float64 cannot hold
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from trainyard.errors import BadFile
from trainyard.events import CALL, DRAWN, NOTE, OP, Events, OperandShape
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.redact import redact
from trainyard.trace.readers.assemble import DeviceTable, FileFacts, HostTable, assemble
from trainyard.trace.readers.kineto.document import Walk
from trainyard.trace.readers.kineto.native import library
from trainyard.trace.readers.kineto.rows import Rows, Tables
from trainyard.trace.readers.kineto.scanner import CompiledScanner
from trainyard.trace.readers.kineto.unpack import ZIP, UnpackedText, no_collection, peek, texts

_NO_GROUPS: Mapping[str, Any] = {}
_Table = TypeVar("_Table", HostTable, DeviceTable)

_HEAD_BYTES = 1 << 20
_LAUNCH = re.compile(r"(cuda|hip|cu)(\w*Launch|Memcpy|Memset)")
_MAX_TIMESTAMP_NS = 2**61
_Count = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]


class Kineto:
    """The `Reader` of Kineto files."""

    def sniff(self, path: Path) -> bool:
        """Whether the file begins like a chrome trace, plain or compressed, or is empty."""
        try:
            head = peek(path, _HEAD_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n")
        except BadFile:
            return False
        if head[:1] == b"{" and len(head) > 1:
            # A header may be longer than this; a complete document without a list of events is another tool's file.
            return b'"traceEvents"' in head or len(head) == _HEAD_BYTES or not head.rstrip().endswith(b"}")
        # No other reader accepts an empty or damaged file, and this one reports best what is wrong with it.
        return head[:1] in (b"{", b"[", b"") or head.startswith(ZIP)

    def read(self, path: Path, how: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """Returns one `Events` per device with work (one of the host's spans if there is none), or one for all devices
        if the file states its rank. Raises `BadFile`: missing, empty, not JSON, no events, larger than the limit.
        """
        with no_collection():
            return tuple(events for text in texts(path, how.limit) for events in _read(text, how.mark))


def _read(text: UnpackedText, mark: str, groups: Mapping[str, Any] = _NO_GROUPS) -> tuple[Events, ...]:
    """Reads one document. `mark`: prefix of step annotations; `groups`: process groups by name, if already known."""
    walk = Walk(text)
    has_events = walk.header_first()
    groups = groups or _Header(walk.header).groups
    native = library()
    scanner = CompiledScanner(groups, native) if native else Rows(groups)
    if has_events:
        walk.run(scanner)
    header = _Header(walk.header)
    if header.groups != groups:  # the process groups come after the events, which need them
        return _read(text, mark, header.groups)
    tables = _as_annotations(scanner.tables(), mark)
    if not len(tables.host.start) and not (tables.device.kind != DRAWN).any():
        raise _no_events_error(text, walk)
    _check_launches(text, tables, bool(walk.lost and header.device_names))
    labels = [_lane_label(lane) for lane in tables.lanes]
    lanes = {label: index for index, label in enumerate(sorted(set(labels)))}
    lane_index = np.array([lanes[label] for label in labels], np.int32)
    device, waits = tables.device, tables.waits
    facts = FileFacts(
        source=text.name,
        names=tables.names,
        lanes=tuple(lanes),
        shapes=[_decode_shape(shape) for shape in tables.shapes],
        rank=header.rank,
        world=header.world,
        device_names=header.device_names,
        host_name=header.host_name,
        backend=header.backend,
        group_sizes=header.group_sizes,
        notes=(*header.notes, *_describe_losses(text, walk, tables.dropped)),
        cut_short=bool(walk.lost),
    )
    return assemble(
        facts,
        _add_base(tables.host, header.base),
        _add_base(device._replace(lane=lane_index[device.lane]), header.base),
        waits._replace(lane=lane_index[waits.lane], on=lane_index[waits.on]),
        mark,
    )


def _as_annotations(tables: Tables, mark: str) -> Tables:
    """The tables with the steps' marks as annotations, if the file has them as ops only, as files of 2021 do."""
    is_mark = np.array([name.startswith(mark) for name in tables.names] or [False], bool)
    host = tables.host
    marks = np.flatnonzero(is_mark[host.name])
    if not (host.kind[marks] == NOTE).any():
        rows = marks[host.kind[marks] == OP]
        host.kind[rows], host.backward[rows] = NOTE, 0
        for column in (host.external, host.seq, host.shape):
            column[rows] = -1
    return tables


def _add_base(table: _Table, base: int) -> _Table:
    if base:
        for column in (table.start, table.stop):
            column += base
    return table


def _no_events_error(text: UnpackedText, walk: Walk) -> BadFile:
    """The error for a document without host spans and device work."""
    reason = f" ({'; '.join(walk.lost)})" if walk.lost else ""
    if not walk.entries:
        return BadFile(
            f"{text.path}: 0 trace events in {text.size:,} bytes{reason}.", "Was the profiler's window ever active?"
        )
    return BadFile(
        f"{text.path}: none of its {walk.entries:,} events is a kernel, copy or host span{reason}.",
        "trainyard reads torch.profiler's chrome traces here.",
    )


def _check_launches(text: UnpackedText, tables: Tables, cut_short: bool) -> None:
    """Raises `BadFile` if the file has no device work although it has launches, or although it names devices and is
    `cut_short`: the host ops of a GPU step must not be read as a CPU step."""
    if (tables.device.kind != DRAWN).any():
        return
    launches = np.array([_LAUNCH.match(name) is not None for name in tables.names], bool)
    launched = int((launches[tables.host.name] & (tables.host.kind == CALL)).sum())
    if launched or cut_short:
        problem = f"{launched:,} calls launch work on a device" if launched else "it names devices and is cut short"
        raise BadFile(
            f"{text.path}: {problem}, but the file holds no device work.",
            "Copy the complete file again, or record with the device's ProfilerActivity.",
        )


def _describe_losses(text: UnpackedText, walk: Walk, dropped: int) -> Iterator[str]:
    """Notes on what could not be read. `dropped`: number of events without a readable time."""
    for lost in walk.lost:
        yield f"{text.name}: {lost}. The complete events are analysed."
    if walk.unread:
        yield f"{walk.unread:,} entries of {text.name} are not readable events; they were left out."
    if dropped:
        yield f"{dropped:,} events with an unreadable or negative time were left out."


def _lane_label(lane: bytes) -> str:
    """`stream 7`, from the event's args or, if they lack it, its thread id (2021: `"stream 7"`)."""
    lane_text = lane.decode("utf-8", "replace").strip('"')[:64]
    return lane_text if lane_text.startswith("stream") else f"stream {lane_text}"


def _decode_shape(raw: bytes) -> OperandShape:
    """Decodes dims, types and values; a part that is not a list is left empty."""
    dims, types, values = (_list(part) for part in raw.split(b"\0"))
    return OperandShape(
        dims=tuple(_dims(entry) for entry in dims),
        types=tuple(redact(str(entry)[:256])[:64] for entry in types),
        values=tuple(redact(str(entry)[:1024])[:256] for entry in values),
    )


def _list(raw: bytes) -> list[object]:
    """The JSON list in `raw`; an empty list if it is absent, damaged or not a list."""
    try:
        value = msgspec.json.decode(raw) if raw else []
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _dims(entry: object) -> tuple[int, ...]:
    lengths = entry if isinstance(entry, list) else []
    return tuple(lengths) if all(type(length) is int and 0 <= length < 2**62 for length in lengths) else ()


class _Distributed(msgspec.Struct):
    """The header's `distributedInfo`. `rank`: -1 if absent; `pg_config`: a description of each process group."""

    rank: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] = -1
    world_size: _Count = 1
    backend: str = ""
    pg_config: list[dict[str, Any]] | None = None


class _Header:
    """The fields of a Kineto file outside its events. A field of another type than Kineto writes is left out and
    reported in `notes`. `base`: ns to add to every timestamp; `world`: 0 if the file does not state it; `groups`: the
    process groups by name; `device_names`: device number -> name."""

    def __init__(self, fields: Mapping[str, bytes]) -> None:
        """`fields`: key of the trace's header -> its raw JSON. A field of the wrong type is left out and noted."""
        self.notes: list[str] = []
        base = self._field(fields, "baseTimeNanoseconds", int | str, 0)
        self.base = self._number(base) if isinstance(base, str) else base
        if abs(self.base) >= _MAX_TIMESTAMP_NS:
            self._left_out("baseTimeNanoseconds")
            self.base = 0
        job = self._field(fields, "distributedInfo", _Distributed | None, None)
        self.world = job.world_size if job else 0
        self.rank = job.rank if job else -1
        if job and self.rank >= self.world:
            self.notes.append(f"distributedInfo states rank {self.rank} in a world of {self.world}: ranks start at 0.")
        self.backend = job.backend if job else ""
        self.groups = {str(group.get("pg_name")): group for group in (job and job.pg_config) or ()}
        self.host_name = self._field(fields, "host_name", str, "")
        properties = self._field(fields, "deviceProperties", list[dict[str, Any]] | None, None) or ()
        self.device_names = {
            number: str(item.get("name", "")) for item in properties if type(number := item.get("id")) is int
        }

    @property
    def group_sizes(self) -> tuple[int, ...]:
        sizes = (group.get("pg_size") for group in self.groups.values())
        return tuple(size for size in sizes if type(size) is int and 0 < size < 2**31)

    def _field(self, fields: Mapping[str, bytes], name: str, kind: Any, default: Any) -> Any:
        """A header field decoded as `kind`; `default`, with a note, if it is missing or of another type."""
        if name not in fields:
            return default
        try:
            return msgspec.json.decode(fields[name], type=kind)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self._left_out(name)
            return default

    def _number(self, text: str) -> int:
        """The integer in `text`, of which only 40 digits are read; 0, with a note, if it is not one."""
        try:
            return int(text[:40])
        except ValueError:
            self._left_out("baseTimeNanoseconds")
            return 0

    def _left_out(self, name: str) -> None:
        self.notes.append(f"{name} is not in Kineto's format; it was left out.")
