"""Reads Kineto JSON (torch.profiler's chrome trace), plain or gzipped, CUDA, ROCm or CPU only.

Formats seen: 2021 (`Kernel`, `Memcpy`, integer µs, thread ids as text) to torch 2.13 (`kernel`,
`gpu_memcpy`, µs with three decimals over `baseTimeNanoseconds`). Stamps stay raw text until they become
integers: a float64 cannot hold them.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from trainyard import units
from trainyard.errors import BadFile
from trainyard.events import CALL, COPY, KERNEL, MEMSET, NOTE, OP, PYTHON, Collective, Events, Host, Mark, Work
from trainyard.trace.collectives import collective_from_args
from trainyard.trace.nest import nest

_RAW = msgspec.Raw(b"")


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | int | None = None
    ts: msgspec.Raw = _RAW
    dur: msgspec.Raw = _RAW
    pid: msgspec.Raw = _RAW
    tid: msgspec.Raw = _RAW
    args: msgspec.Raw = _RAW


class _Distributed(msgspec.Struct):
    rank: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] = -1
    world_size: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] = 1
    backend: str = ""
    pg_config: list[dict[str, Any]] | None = None


class _File(msgspec.Struct):
    traceEvents: list[_Event] | None = None
    deviceProperties: list[dict[str, Any]] | None = None
    distributedInfo: _Distributed | None = None
    baseTimeNanoseconds: int | str = 0
    host_name: str = ""


_LARGEST = 2**63 - 1
_Int = Annotated[int, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]


class _Args(msgspec.Struct, gc=False):
    correlation: _Int = -1
    external_id: _Int = msgspec.field(name="External id", default=-1)
    old_external_id: _Int = msgspec.field(name="external id", default=-1)
    device: _Int = -1
    stream: _Int | str = -1
    seq: _Int = msgspec.field(name="Sequence number", default=-1)
    forward_thread: _Int = msgspec.field(name="Fwd thread id", default=0)


_DEVICE = {"kernel": KERNEL, "gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": MEMSET, "memset": MEMSET}
_HOST = {
    "cpu_op": OP,
    "operator": OP,
    "user_annotation": NOTE,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "runtime": CALL,
    "python_function": PYTHON,
}
_MARK = "ProfilerStep#"
_ANNOTATIONS = (_MARK, "Optimizer.", "enumerate(DataLoader)")
_decode_args = msgspec.json.Decoder(_Args).decode
_decode_any = msgspec.json.Decoder().decode
_decode_file = msgspec.json.Decoder(_File).decode
_decode_list = msgspec.json.Decoder(list[_Event]).decode


class Kineto:
    """The `Reader` of Kineto files."""

    def sniff(self, path: Path) -> bool:
        try:
            with path.open("rb") as file:
                head = file.read(65536)
        except OSError:
            return False
        if head[:2] == b"\x1f\x8b":
            try:
                head = zlib.decompressobj(31).decompress(head, 65536)
            except zlib.error:
                return False
        head = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        # An empty file is no other reader's, and this one says best what is wrong with it.
        return head[:1] in (b"{", b"[", b"")

    def read(self, path: Path) -> tuple[Events, ...]:
        """One `Events` for each device with work in the file (one of the host's where there is none).

        Raises `BadFile`: missing, empty, truncated, not JSON, no events, or stamps that are no times.
        """
        document = _decode(path, _unpacked(path))
        if not document.traceEvents:
            raise BadFile(f"{path}: the file holds no trace events.", "Was the profiler's window ever active?")
        return _Builder(path, document).build()


def _unpacked(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path}: cannot be read: {error.strerror}.") from error
    if data[:2] == b"\x1f\x8b":
        try:
            return _gunzip()(data)
        except (EOFError, OSError, zlib.error) as error:
            raise BadFile(
                f"{path}: the gzip stream is damaged after {len(data):,} bytes: {error}.",
                "Was the copy or the run cut short?",
            ) from error
    if not data.strip():
        raise BadFile(f"{path}: the file is empty.", "Was the run cut short before the trace was written?")
    return data


def _gunzip() -> Callable[[bytes], bytes]:
    try:
        from isal import igzip  # the extra `fast`
    except ImportError:
        return gzip.decompress
    return igzip.decompress


def _decode(path: Path, data: bytes) -> _File:
    bare = data.lstrip()[:1] == b"["
    try:
        return _File(traceEvents=_decode_list(data)) if bare else _decode_file(data)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadFile(f"{path}: not a Kineto trace: {error}.", "Was another tool's file named?") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _decode_slowly(path, data, str(error))


def _decode_slowly(path: Path, data: bytes, why: str) -> _File:
    """The tolerant way: NaN and Infinity, which Python's json writes, and bytes that are not UTF-8."""
    try:
        document = json.loads(data.decode("utf-8", "replace"), parse_float=Decimal, parse_constant=lambda _: None)
        if isinstance(document, list):
            document = {"traceEvents": document}
        return _decode_file(msgspec.json.Encoder(decimal_format="number").encode(document))
    except (ValueError, RecursionError) as error:
        raise BadFile(
            f"{path}: not JSON, or cut short: {why} ({len(data):,} bytes).", "Was the file still being written?"
        ) from error


class _Builder:
    """Turns decoded events into columns. `base` is added to every stamp, so that ranks can be laid side by side."""

    def __init__(self, path: Path, document: _File) -> None:
        self.path, self.document = path, document
        try:
            self.base = int(document.baseTimeNanoseconds)
        except ValueError as error:
            raise BadFile(f"{path}: baseTimeNanoseconds is {document.baseTimeNanoseconds!r}, no number.") from error
        self.names: dict[str, int] = {}
        self.threads: dict[tuple[bytes, bytes], int] = {}
        self.thread_names: dict[int, str] = {}
        self.streams: dict[str, int] = {}
        self.dropped = 0

    def build(self) -> tuple[Events, ...]:
        device_events: list[tuple[int, int, int, _Args, _Event]] = []
        host_events: list[tuple[int, int, int, _Event]] = []
        for event in self.document.traceEvents or ():
            if event.ph == "X" and event.cat:
                cat = event.cat.lower()
                if (what := _HOST.get(cat)) is not None:
                    # In 2021 annotations were operators too.
                    if what == OP and str(event.name).startswith(_ANNOTATIONS):
                        what = NOTE
                    if (times := self.times(event)) is not None:
                        host_events.append((*times, what, event))
                elif (what := _DEVICE.get(cat)) is not None and (times := self.times(event)) is not None:
                    device_events.append((*times, what, self.args(event), event))
            elif event.ph == "M" and event.name == "thread_name":
                thread = self.threads.setdefault((bytes(event.pid), bytes(event.tid)), len(self.threads))
                label = _plain(event.args).get("name")
                if isinstance(label, str):
                    self.thread_names[thread] = label
        if not device_events and not host_events:
            count = len(self.document.traceEvents or ())
            raise BadFile(
                f"{self.path}: none of its {count:,} events is a kernel, copy or host span.",
                "trainyard reads torch.profiler's chrome traces.",
            )
        host, calls, ops = self.host(host_events)
        marks = self.marks(host_events)
        main = self.main_thread(host, marks)
        spans = [time for start, stop, *_ in (*host_events, *device_events) for time in (start, stop)]
        devices = sorted({args.device for *_, args, _ in device_events}) or [-1]
        return tuple(
            self.events(
                index, host, marks, main, (min(spans), max(spans)),
                self.work([row for row in device_events if row[3].device == index], calls, ops), len(devices) > 1,
            )
            for index in devices
        )  # fmt: skip

    def events(
        self, index: int, host: Host, marks: tuple[Mark, ...], main: int, span: tuple[int, int], work: Work, many: bool
    ) -> Events:
        info = self.document.distributedInfo or _Distributed()
        known = {item.get("id"): item for item in self.document.deviceProperties or ()}
        # A container may renumber devices: where all are of one make, the number does not matter.
        makes = {str(item.get("name", "")) for item in known.values()}
        make = str(known[index].get("name", "")) if index in known else makes.pop() if len(makes) == 1 else ""
        label = f"{self.path.name}:{index}" if many else self.path.name
        notes = [f"{self.dropped:,} events with an unreadable or negative time were left out."] if self.dropped else []
        if many:
            notes.append("The file holds several devices; each is taken as a rank of its own.")
        threads = [""] * len(self.threads)
        for thread, name in self.thread_names.items():
            threads[thread] = name
        return Events(
            source=label,
            names=tuple(self.names),
            threads=tuple(threads),
            streams=tuple(self.streams),
            work=work,
            host=host,
            marks=marks,
            span=span,
            main=main,
            rank=index if many and info.rank < 0 else info.rank,
            world=info.world_size,
            device=make,
            device_index=index,
            devices=len(known),
            host_name=self.document.host_name,
            backend=info.backend,
            group_sizes=tuple(
                size for group in info.pg_config or () if isinstance(size := group.get("pg_size"), int) and size > 0
            ),
            notes=tuple(notes),
        )

    def times(self, event: _Event) -> tuple[int, int] | None:
        """(start, stop) in absolute ns, or None (and counted) where the stamps are no times."""
        try:
            start = self.base + units.ns_from_us(bytes(event.ts).strip(b'"'))
            length = units.ns_from_us(bytes(event.dur).strip(b'"')) if event.dur else 0
        except ValueError:
            self.dropped += 1
            return None
        if length < 0 or not -(2**62) < start < 2**62 or length >= 2**62:
            self.dropped += 1
            return None
        return start, start + length

    def args(self, event: _Event) -> _Args:
        if not event.args:
            return _Args()
        try:
            return _decode_args(event.args)
        except msgspec.ValidationError:
            # A field of an odd type: keep those that are as expected.
            plain = _plain(event.args)
            return _Args(
                **{
                    name: plain[field]
                    for name, field in zip(_Args.__struct_fields__, _Args.__struct_encode_fields__)
                    if type(plain.get(field)) is int and abs(plain[field]) <= _LARGEST
                }
            )

    def name(self, event: _Event) -> int:
        return self.names.setdefault(str(event.name), len(self.names))

    def host(self, events: list[tuple[int, int, int, _Event]]) -> tuple[Host, dict[int, int], dict[int, int]]:
        """The host table, correlation -> row of its call, External id -> row of its op."""
        events.sort(key=lambda row: (row[0], -row[1]))
        starts = np.fromiter((row[0] for row in events), np.int64, len(events))
        stops = np.fromiter((row[1] for row in events), np.int64, len(events))
        threads: list[int] = []
        calls: dict[int, int] = {}
        ops: dict[int, int] = {}
        seq = np.full(len(events), -1, np.int64)
        backward = np.zeros(len(events), np.int8)
        collectives: dict[int, Collective] = {}
        for row, (_, _, what, event) in enumerate(events):
            threads.append(self.threads.setdefault((bytes(event.pid), bytes(event.tid)), len(self.threads)))
            if what == PYTHON:
                continue
            args = self.args(event)
            if what == CALL:
                # Several driver calls may share one correlation; the one that launches is the one meant.
                if args.correlation not in calls or "aunch" in str(event.name):
                    calls[args.correlation] = row
            elif what == OP:
                ops.setdefault(args.external_id, row)
                seq[row] = args.seq
                backward[row] = args.forward_thread > 0
            elif found := collective_from_args(str(event.name), _plain(event.args), self.groups):
                collectives[row] = found
        thread = np.array(threads, np.int32)
        parent, stops = nest(starts, stops, thread)
        calls.pop(-1, None)
        ops.pop(-1, None)
        host = Host(
            start=starts,
            stop=stops,
            name=np.array([self.name(row[3]) for row in events], np.int32),
            thread=thread,
            what=np.array([row[2] for row in events], np.int8),
            parent=parent,
            seq=seq,
            backward=backward,
            collectives=collectives,
        )
        return host, calls, ops

    def work(
        self, events: list[tuple[int, int, int, _Args, _Event]], calls: dict[int, int], ops: dict[int, int]
    ) -> Work:
        events.sort(key=lambda row: (row[0], -row[1]))
        call: list[int] = []
        op: list[int] = []
        collectives: dict[int, Collective] = {}
        for row, (_, _, what, args, event) in enumerate(events):
            call.append(calls.get(args.correlation, -1))
            external = args.external_id if args.external_id >= 0 else args.old_external_id
            # Before 2023 a kernel's External id repeats its correlation and names no op.
            op.append(ops.get(external, -1) if external != args.correlation else -1)
            if what == KERNEL and b"Collective name" in bytes(event.args):
                found = collective_from_args(str(event.name), _plain(event.args), self.groups)
                if found:
                    collectives[row] = found
        stream = [self.streams.setdefault(_stream(args, event), len(self.streams)) for *_, args, event in events]
        return Work(
            start=_column((row[0] for row in events), np.int64),
            stop=_column((row[1] for row in events), np.int64),
            name=_column((self.name(row[4]) for row in events), np.int32),
            stream=_column(stream, np.int32),
            what=_column((row[2] for row in events), np.int8),
            call=_column(call, np.int32),
            op=_column(op, np.int32),
            collectives=collectives,
        )

    @property
    def groups(self) -> dict[str, dict[str, Any]]:
        info = self.document.distributedInfo
        return {str(group.get("pg_name")): group for group in (info.pg_config if info else None) or ()}

    def marks(self, events: list[tuple[int, int, int, _Event]]) -> tuple[Mark, ...]:
        found = {
            (start, stop, str(event.name)[len(_MARK) :])
            for start, stop, what, event in events
            if what == NOTE and str(event.name).startswith(_MARK)
        }
        return tuple(Mark(label=label[:32], start=start, stop=stop) for start, stop, label in sorted(found))

    def main_thread(self, host: Host, marks: tuple[Mark, ...]) -> int:
        """The thread of the first mark; else the one with the most time in framework ops."""
        if not len(host):
            return 0
        if marks:
            rows = np.flatnonzero((host.start == marks[0].start) & (host.stop == marks[0].stop))
            if len(rows):
                return int(host.thread[rows[0]])
        busy = np.bincount(host.thread, weights=(host.stop - host.start) * ((host.what == OP) & (host.parent < 0)))
        return int(busy.argmax())


def _stream(args: _Args, event: _Event) -> str:
    """`stream 7`, from the event's args or, where they lack it, its thread id (2021: `"stream 7"`)."""
    if args.stream != -1:
        return f"stream {args.stream}"
    lane = bytes(event.tid).decode("utf-8", "replace").strip('"')[:64]
    return lane if lane.startswith("stream") else f"stream {lane}"


def _column(values: Iterable[int], kind: type[np.integer[Any]]) -> Any:
    return np.fromiter(values, kind)


def _plain(raw: msgspec.Raw) -> dict[str, Any]:
    value = _decode_any(raw) if raw else None
    return value if isinstance(value, dict) else {}
