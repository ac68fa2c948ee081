"""Reads Kineto JSON (torch.profiler's chrome trace), plain or gzipped, CUDA, ROCm or CPU only.

Formats seen: 2021 (`Kernel`, `Memcpy`, integer µs, thread ids as text) to torch 2.13 (`kernel`,
`gpu_memcpy`, µs with three decimals over `baseTimeNanoseconds`). Stamps stay raw text until they become
integers: a float64 cannot hold them.
"""

from __future__ import annotations

import gc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from trainyard import units
from trainyard.errors import BadFile
from trainyard.events import CALL, COPY, KERNEL, MEMSET, NOTE, OP, PYTHON, Collective, Events
from trainyard.trace.assemble import DeviceTable, Facts, HostTable, assemble, no_stream_waits
from trainyard.trace.chrome import Args, Distributed, Document, Event, args_of, load, plain
from trainyard.trace.collectives import collective_from_args, speaks_of_collective

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
_ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")


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
        self.lanes: dict[str, int] = {}
        self.dropped = 0

    def build(self) -> tuple[Events, ...]:
        host: list[tuple[int, ...]] = []
        device: list[tuple[int, ...]] = []
        of_host: dict[int, Collective] = {}
        of_device: dict[int, Collective] = {}
        for event in self.document.traceEvents or []:
            if event.ph != "X" or not event.cat:
                continue
            cat, name = event.cat.lower(), str(event.name)
            if (what := _HOST.get(cat)) is not None and (times := self.times(event)) is not None:
                # In 2021 annotations were operators too.
                what = NOTE if what == OP and name.startswith(_ANNOTATIONS) else what
                args = args_of(event) if what in (OP, CALL) else Args()
                thread = self.threads.setdefault((bytes(event.pid), bytes(event.tid)), len(self.threads))
                if what == NOTE and speaks_of_collective(name):
                    of_host[len(host)] = collective_from_args(name, plain(event.args), self.groups)
                host.append((*times, self.name(name), thread, what, args.correlation, args.external_id, args.seq,
                             args.forward_thread > 0, -1))  # fmt: skip
            elif (what := _DEVICE.get(cat)) is not None and (times := self.times(event)) is not None:
                args = args_of(event)
                if what == KERNEL and b"Collective name" in bytes(event.args):
                    of_device[len(device)] = collective_from_args(name, plain(event.args), self.groups)
                external = args.external_id if args.external_id >= 0 else args.old_external_id
                lane = self.lanes.setdefault(_stream(args, event), len(self.lanes))
                device.append((*times, self.name(name), lane, args.device, what, args.correlation, external, -1, -1))
        if not host and not device:
            raise BadFile(
                f"{self.path}: none of its {len(self.document.traceEvents or ()):,} events is a kernel, copy or host "
                "span.",
                "trainyard reads torch.profiler's chrome traces.",
            )
        i8, i32, i64 = np.int8, np.int32, np.int64
        return assemble(
            self.facts(),
            HostTable(*_columns(host, (i64, i64, i32, i32, i8, i64, i64, i64, i8, i32)), of_host),
            DeviceTable(*_columns(device, (i64, i64, i32, i32, i32, i8, i64, i64, i64, i8)), of_device),
            no_stream_waits(),
        )

    def facts(self) -> Facts:
        return Facts(
            source=self.path.name,
            names=tuple(self.names),
            lanes=tuple(self.lanes),
            rank=self.info.rank,
            world=self.info.world_size if self.document.distributedInfo else 0,
            makes={
                number: str(item.get("name", ""))
                for item in self.document.deviceProperties or ()
                if isinstance(number := item.get("id"), int)
            },
            host_name=self.document.host_name,
            backend=self.info.backend,
            group_sizes=tuple(
                size for group in self.groups.values() if isinstance(size := group.get("pg_size"), int) and size > 0
            ),
            notes=(f"{self.dropped:,} events with an unreadable or negative time were left out.",)
            if self.dropped
            else (),
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

    def name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))


def _stream(args: Args, event: Event) -> str:
    """`stream 7`, from the event's args or, where they lack it, its thread id (2021: `"stream 7"`)."""
    lane = str(args.stream) if args.stream != -1 else bytes(event.tid).decode("utf-8", "replace").strip('"')[:64]
    return lane if lane.startswith("stream") else f"stream {lane}"


def _columns(rows: list[tuple[int, ...]], kinds: tuple[type, ...]) -> list[Any]:
    table = np.array(rows, np.int64).reshape(len(rows), len(kinds))
    return [column.astype(kind) for column, kind in zip(table.T, kinds)]
