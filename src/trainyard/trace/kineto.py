"""Reads Kineto JSON (torch.profiler's chrome trace), plain or gzipped, CUDA, ROCm or CPU only.

Formats seen: 2021 (`Kernel`, `Memcpy`, integer µs, thread ids as text) to torch 2.13 (`kernel`,
`gpu_memcpy`, µs with three decimals over `baseTimeNanoseconds`). Stamps stay raw text until they become
integers: a float64 cannot hold them.
"""

from __future__ import annotations

import gc
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainyard import units
from trainyard.errors import BadFile
from trainyard.events import CALL, COPY, KERNEL, MEMSET, NOTE, OP, PYTHON, Collective, Events, Host, Mark, Work
from trainyard.trace.chrome import Args, Distributed, Document, Event, args_of, load, plain
from trainyard.trace.collectives import collective_from_args, speaks_of_collective
from trainyard.trace.nest import nest

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
        """One `Events` for each device with work in the file (one of the host's where there is none); where the file
        states its rank, one for all devices.

        Raises `BadFile`: missing, empty, truncated, not JSON, no events, or stamps that are no times.
        """
        with _no_collection():
            document = load(path)
            if not document.traceEvents:
                raise BadFile(f"{path}: the file holds no trace events.", "Was the profiler's window ever active?")
            try:
                return _Builder(path, document).build()
            except RecursionError as error:
                raise BadFile(f"{path}: an event's args nest too deeply to be a profiler's: {error}.") from error


@contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of live objects and no garbage: looking for cycles among them takes a third of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Span(NamedTuple):
    start: int
    stop: int
    what: int
    event: Event


class _Interval(NamedTuple):
    start: int
    stop: int
    what: int
    args: Args
    event: Event


class _Builder:
    """Turns decoded events into columns. `base` is added to every stamp, so that ranks can be laid side by side."""

    def __init__(self, path: Path, document: Document) -> None:
        self.path, self.document = path, document
        try:
            self.base = int(document.baseTimeNanoseconds)
        except ValueError as error:
            raise BadFile(f"{path}: baseTimeNanoseconds is {document.baseTimeNanoseconds!r}, no number.") from error
        self.info = document.distributedInfo or Distributed()
        self.groups = {str(group.get("pg_name")): group for group in self.info.pg_config or ()}
        self.names: dict[str, int] = {}
        self.threads: dict[tuple[bytes, bytes], int] = {}
        self.streams: dict[str, int] = {}
        self.dropped = 0

    def build(self) -> tuple[Events, ...]:
        intervals, spans = self.sort()
        host, calls, ops = self.host(spans)
        marks, main = self.marks(spans, host)
        whole = [time for row in (*spans, *intervals) for time in row[:2]]
        span = (min(whole), max(whole))
        devices = sorted({row.args.device for row in intervals if row.args.device >= 0})
        # One rank may touch a second device in passing, and an event may not say its device.
        together = self.info.rank >= 0 or len(devices) < 2
        if together:
            work = self.work(intervals, calls, ops, len(devices) > 1)
            return (self.events(devices[0] if devices else -1, host, marks, main, span, work, False),)
        return tuple(
            self.events(
                device,
                host,
                marks,
                main,
                span,
                self.work([row for row in intervals if row.args.device == device], calls, ops, False),
                True,
            )
            for device in devices
        )

    def sort(self) -> tuple[list[_Interval], list[_Span]]:
        """The file's device intervals and host spans, each by start, the longest first."""
        intervals: list[_Interval] = []
        spans: list[_Span] = []
        events = self.document.traceEvents or []
        for event in events:
            if event.ph != "X" or not event.cat:
                continue
            cat = event.cat.lower()
            if (what := _HOST.get(cat)) is not None:
                # In 2021 annotations were operators too.
                if what == OP and str(event.name).startswith(_ANNOTATIONS):
                    what = NOTE
                if (times := self.times(event)) is not None:
                    spans.append(_Span(*times, what, event))
            elif (what := _DEVICE.get(cat)) is not None and (times := self.times(event)) is not None:
                intervals.append(_Interval(*times, what, args_of(event), event))
        if not intervals and not spans:
            raise BadFile(
                f"{self.path}: none of its {len(events):,} events is a kernel, copy or host span.",
                "trainyard reads torch.profiler's chrome traces.",
            )
        intervals.sort(key=lambda row: (row.start, -row.stop))
        spans.sort(key=lambda row: (row.start, -row.stop))
        return intervals, spans

    def events(
        self, index: int, host: Host, marks: tuple[Mark, ...], main: int, span: tuple[int, int], work: Work, many: bool
    ) -> Events:
        known = {item.get("id"): item for item in self.document.deviceProperties or ()}
        # A container may renumber devices: where all are of one make, the number does not matter.
        makes = {str(item.get("name", "")) for item in known.values()}
        make = str(known[index].get("name", "")) if index in known else makes.pop() if len(makes) == 1 else ""
        notes = [f"{self.dropped:,} events with an unreadable or negative time were left out."] if self.dropped else []
        if many:
            notes.append("The file holds several devices; each is taken as a rank of its own.")
        said = self.info.world_size if self.document.distributedInfo else 0
        met = [*host.collectives.values(), *work.collectives.values()]
        return Events(
            source=f"{self.path.name}:{index}" if many else self.path.name,
            names=tuple(self.names),
            streams=tuple(self.streams),
            work=work,
            host=host,
            marks=marks,
            span=span,
            main=main,
            rank=index if many else self.info.rank,
            world=max([said, *(collective.members for collective in met)]),
            device=make,
            device_index=index,
            devices=len(known),
            host_name=self.document.host_name,
            backend=self.info.backend,
            group_sizes=tuple(
                size for group in self.groups.values() if isinstance(size := group.get("pg_size"), int) and size > 0
            ),
            notes=tuple(notes),
        )

    def times(self, event: Event) -> tuple[int, int] | None:
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

    def name(self, event: Event) -> int:
        return self.names.setdefault(str(event.name), len(self.names))

    def host(self, spans: list[_Span]) -> tuple[Host, dict[int, int], dict[int, int]]:
        """The host table, correlation -> row of its call, External id -> row of its op."""
        starts = _column((row.start for row in spans), np.int64)
        stops = _column((row.stop for row in spans), np.int64)
        threads: list[int] = []
        calls: dict[int, int] = {}
        ops: dict[int, int] = {}
        seq = np.full(len(spans), -1, np.int64)
        backward = np.zeros(len(spans), np.int8)
        collectives: dict[int, Collective] = {}
        for row, (_, _, what, event) in enumerate(spans):
            threads.append(self.threads.setdefault((bytes(event.pid), bytes(event.tid)), len(self.threads)))
            if what == CALL:
                correlation = args_of(event).correlation
                # Several driver calls may share one correlation; the one that launches is the one meant.
                if correlation not in calls or "aunch" in str(event.name):
                    calls[correlation] = row
            elif what == OP:
                args = args_of(event)
                ops.setdefault(args.external_id, row)
                seq[row] = args.seq
                backward[row] = args.forward_thread > 0
            elif what == NOTE and speaks_of_collective(str(event.name)):
                collectives[row] = collective_from_args(str(event.name), plain(event.args), self.groups)
        calls.pop(-1, None)
        ops.pop(-1, None)
        thread = np.array(threads, np.int32)
        parent, stops = nest(starts, stops, thread)
        host = Host(
            start=starts,
            stop=stops,
            name=_column((self.name(row.event) for row in spans), np.int32),
            thread=thread,
            what=_column((row.what for row in spans), np.int8),
            parent=parent,
            seq=seq,
            backward=backward,
            collectives=collectives,
        )
        return host, calls, ops

    def work(self, intervals: list[_Interval], calls: dict[int, int], ops: dict[int, int], several: bool) -> Work:
        """The device table; with `several` devices, streams are told apart by device."""
        call: list[int] = []
        op: list[int] = []
        collectives: dict[int, Collective] = {}
        for row, (_, _, what, args, event) in enumerate(intervals):
            call.append(calls.get(args.correlation, -1))
            external = args.external_id if args.external_id >= 0 else args.old_external_id
            # Before 2023 a kernel's External id repeats its correlation and names no op.
            op.append(ops.get(external, -1) if external != args.correlation else -1)
            if what == KERNEL and b"Collective name" in bytes(event.args):
                collectives[row] = collective_from_args(str(event.name), plain(event.args), self.groups)
        labels = (_stream(row.args, row.event, several) for row in intervals)
        return Work(
            start=_column((row.start for row in intervals), np.int64),
            stop=_column((row.stop for row in intervals), np.int64),
            name=_column((self.name(row.event) for row in intervals), np.int32),
            stream=_column((self.streams.setdefault(label, len(self.streams)) for label in labels), np.int32),
            what=_column((row.what for row in intervals), np.int8),
            call=_column(call, np.int32),
            op=_column(op, np.int32),
            collectives=collectives,
        )

    def marks(self, spans: list[_Span], host: Host) -> tuple[tuple[Mark, ...], int]:
        """The steps' marks, and the thread they are on; without marks, the thread with the most time in ops.

        Marks are of one thread, the one with most of them; a label stands once, and no mark inside another.
        """
        rows = [row for row, span in enumerate(spans) if span.what == NOTE and str(span.event.name).startswith(_MARK)]
        if not rows:
            top = (host.what == OP) & (host.parent < 0)
            busy = np.bincount(host.thread, weights=(host.stop - host.start) * top) if len(host) else np.zeros(1)
            return (), int(busy.argmax())
        main = Counter(int(host.thread[row]) for row in rows).most_common(1)[0][0]
        marks: dict[str, Mark] = {}
        for row in rows:
            start, stop, _, event = spans[row]
            label = str(event.name)[len(_MARK) :][:32]
            inside = marks and start < next(reversed(marks.values())).stop
            if host.thread[row] == main and label not in marks and not inside:
                marks[label] = Mark(label=label, start=start, stop=stop)
        return tuple(marks.values()), main


def _stream(args: Args, event: Event, several: bool) -> str:
    """`stream 7`, from the event's args or, where they lack it, its thread id (2021: `"stream 7"`)."""
    lane = str(args.stream) if args.stream != -1 else bytes(event.tid).decode("utf-8", "replace").strip('"')[:64]
    lane = lane if lane.startswith("stream") else f"stream {lane}"
    return f"device {args.device} {lane}" if several else lane


def _column(values: Iterable[int], kind: type[np.integer[Any]]) -> Any:
    return np.fromiter(values, kind)
